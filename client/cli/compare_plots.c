// SPDX-License-Identifier: Apache-2.0
// Plots of `assay compare`, as SVG that reads on light and dark pages: for each context what the
// methods lose against the bytes of the device that a token takes.
//
// A point's label stands where it meets no other one: to the right, the left, above or below.
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "client/cli/compare.h"

#define WIDTH         760.0
#define HEIGHT        420.0
#define LEFT          64.0
#define RIGHT         40.0
#define TOP           70.0
#define BOTTOM        56.0
#define LETTER_WIDTH  6.4 // about, of a label
#define LETTER_HEIGHT 13.0
#define LOG_FROM      20.0 // times the least value is the greatest: then the axis is logarithmic
#define POINTS_MAX    CLI_COMPARE_NAMES_MAX

static const char style[] =
    "text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#40464d}"
    ".title{font-size:15px;font-weight:600;fill:#15191e}.note{fill:#6a727b}"
    ".grid{stroke:#d9dde2}.axis{stroke:#8b939c}.page{fill:#fff}.dot{fill:#1f6feb}"
    ".full{fill:#d4622a}"
    "@media(prefers-color-scheme:dark){text{fill:#b8c0c9}.title{fill:#eef1f5}.note{fill:#8d96a0}"
    ".grid{stroke:#2d333b}.axis{stroke:#6a727b}.page{fill:#0f1318}.dot{fill:#5b9dff}"
    ".full{fill:#f08a55}}";

typedef struct point {
    const char *label;
    double x, y;
} point_t;

typedef struct chart {
    const char *file, *title, *y_name;
    point_t points[POINTS_MAX];
    uint32_t count;
    double x_max, y_min, y_max;
    bool is_log; // of y
} chart_t;

typedef struct box {
    double x0, y0, x1, y1;
} box_t;

// ---- Places

static double x_of(const chart_t *chart, double value)
{
    return LEFT + value / chart->x_max * (WIDTH - LEFT - RIGHT);
}

static double y_of(const chart_t *chart, double value)
{
    double share = chart->is_log ? log(value / chart->y_min) / log(chart->y_max / chart->y_min)
                                 : (value - chart->y_min) / (chart->y_max - chart->y_min);
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

// 1, 2 or 5 times a power of ten, of which at most six go into `range`.
static double step_of(double range)
{
    double power = pow(10, floor(log10(range)));
    const double parts[] = {0.2, 0.5, 1, 2};
    size_t i = 0;
    while (i < 3 && range / (power * parts[i]) > 6) {
        i++;
    }
    return power * parts[i];
}

static void set_range(chart_t *chart)
{
    double low = INFINITY, high = 0;
    chart->x_max = 1;
    for (uint32_t i = 0; i < chart->count; i++) {
        low = fmin(low, chart->points[i].y);
        high = fmax(high, chart->points[i].y);
        chart->x_max = fmax(chart->x_max, chart->points[i].x * 1.1);
    }
    chart->is_log = low > 0 && high / low > LOG_FROM;
    chart->y_max = chart->is_log ? high * 1.5 : high * 1.08;
    chart->y_min = chart->is_log ? low / 1.5 : low > high / 2 ? low - (high - low) * 0.2 : 0;
    if (chart->y_max <= chart->y_min) {
        chart->y_min = 0;
        chart->y_max = high > 0 ? 2 * high : 1;
    }
}

// ---- Labels

static bool meets(const box_t *a, const box_t *b)
{
    return a->x0 < b->x1 && b->x0 < a->x1 && a->y0 < b->y1 && b->y0 < a->y1;
}

// Boxes [0, taken) are those of dots and of labels that have their place.
static box_t place(const box_t *boxes, uint32_t taken, double x, double y, double wide)
{
    const double dx[] = {8, -8 - wide, -wide / 2, -wide / 2, 8, 8, -8 - wide, -8 - wide};
    const double dy[] = {4, 4, -9, 18, -8, 16, -8, 16};
    box_t box = {0};
    for (size_t i = 0; i < sizeof(dx) / sizeof(dx[0]); i++) {
        box_t tried = {x + dx[i], y + dy[i] - LETTER_HEIGHT + 2, x + dx[i] + wide, y + dy[i] + 2};
        bool free = tried.x0 > LEFT && tried.x1 < WIDTH;
        for (uint32_t j = 0; free && j < taken; j++) {
            free = !meets(&tried, &boxes[j]);
        }
        if (i == 0 || free) {
            box = tried;
        }
        if (free) {
            break;
        }
    }
    return box;
}

static void draw_points(FILE *out, const chart_t *chart)
{
    box_t boxes[2 * POINTS_MAX];
    uint32_t taken = 0;
    for (uint32_t i = 0; i < chart->count; i++) {
        double x = x_of(chart, chart->points[i].x), y = y_of(chart, chart->points[i].y);
        bool full = strcmp(chart->points[i].label, "none") == 0;
        boxes[taken++] = (box_t){x - 4, y - 4, x + 4, y + 4};
        fprintf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"/>\n",
                full ? "full" : "dot", x, y);
    }
    for (uint32_t i = 0; i < chart->count; i++) {
        const point_t *point = &chart->points[i];
        double wide = LETTER_WIDTH * (double)strlen(point->label);
        box_t box = place(boxes, taken, x_of(chart, point->x), y_of(chart, point->y), wide);
        boxes[taken++] = box;
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", box.x0, box.y1 - 2, point->label);
    }
}

// ---- Drawing

static void draw_y(FILE *out, const chart_t *chart, double value)
{
    double y = y_of(chart, value);
    fprintf(out,
            "<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
            LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4, value);
}

static void draw_axes(FILE *out, const chart_t *chart)
{
    double base = HEIGHT - BOTTOM, x_step = step_of(chart->x_max);
    if (chart->is_log) {
        static const double parts[] = {1, 2, 5};
        for (int i = 3 * (int)floor(log10(chart->y_min)); i < 3 * 12; i++) {
            double value = pow(10, floor(i / 3.0)) * parts[(i % 3 + 3) % 3];
            if (value >= chart->y_min && value <= chart->y_max) {
                draw_y(out, chart, value);
            }
        }
    } else {
        double step = step_of(chart->y_max - chart->y_min);
        for (double v = ceil(chart->y_min / step) * step; v <= chart->y_max; v += step) {
            draw_y(out, chart, v);
        }
    }
    for (double v = 0; v <= chart->x_max; v += x_step) {
        fprintf(out, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%g</text>\n",
                x_of(chart, v), base + 18, v);
    }
    fprintf(out,
            "<line class=\"axis\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.0f\" y2=\"%.0f\"/>"
            "<text class=\"note\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">bytes of the device "
            "a token</text><text class=\"note\" x=\"16\" y=\"%.0f\">%s%s</text>\n",
            LEFT, WIDTH - RIGHT, base, base, (LEFT + WIDTH - RIGHT) / 2, base + 40, TOP - 10,
            chart->y_name, chart->is_log ? ", logarithmic" : "");
}

static void draw(FILE *out, const chart_t *chart, const char *note)
{
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
            "aria-label=\"%s\">\n<style>%s</style>\n"
            "<rect class=\"page\" width=\"%.0f\" height=\"%.0f\" rx=\"6\"/>\n"
            "<text class=\"title\" x=\"16\" y=\"24\">%s</text>\n"
            "<text class=\"note\" x=\"16\" y=\"41\">%s</text>\n",
            WIDTH, HEIGHT, chart->title, style, WIDTH, HEIGHT, chart->title, note);
    draw_axes(out, chart);
    draw_points(out, chart);
    fputs("</svg>\n", out);
}

// The characters of markup become spaces: names come from raw data, which may come from anywhere.
static void plain(char *text)
{
    for (size_t at; text[at = strcspn(text, "<>&\"'")] != '\0';) {
        text[at] = ' ';
    }
}

static bool write_chart(const char *folder, const chart_t *chart, int64_t context, const char *note)
{
    char path[CLI_PATH_BYTES];
    int length = snprintf(path, sizeof(path), "%s/compare-%s-%lld.svg", folder, chart->file,
                          (long long)context);
    FILE *out = length < (int)sizeof(path) ? fopen(path, "w") : NULL;
    bool good = out;
    if (out) {
        draw(out, chart, note);
        good = !ferror(out);
        good = fclose(out) == 0 && good;
    }
    if (!good) {
        cli_complain("cannot write %s: %s", path, strerror(errno));
    }
    return good;
}

static void add(chart_t *chart, const cli_compare_row_t *row, double y)
{
    if (isfinite(row->token_bytes) && isfinite(y) && chart->count < POINTS_MAX) {
        chart->points[chart->count++] = (point_t){row->compressor, row->token_bytes, y};
    }
}

// Of the rows [first, last), which are of one context.
static bool plot_context(const char *folder, const json_t *raw, const cli_compare_row_t *first,
                         const cli_compare_row_t *last)
{
    chart_t perplexity = {.file = "perplexity",
                          .title = "Perplexity of the text that follows, without verification",
                          .y_name = "perplexity"};
    chart_t run = {.file = "run",
                   .title = "Drafted tokens that one verification confirms",
                   .y_name = "accepted run, tokens"};
    const char *model = json_string_value(json_object_get(raw, "model"));
    char note[160];
    snprintf(note, sizeof(note), "%.80s, contexts of %lld tokens; none: the full cache",
             model ? model : "?", (long long)first->context);
    plain(note);
    for (const cli_compare_row_t *row = first; row < last; row++) {
        add(&perplexity, row, row->perplexity);
        add(&run, row, row->accepted_run);
    }
    bool good = true;
    chart_t *charts[] = {&perplexity, &run};
    for (size_t i = 0; good && i < 2; i++) {
        if (charts[i]->count > 0) {
            set_range(charts[i]);
            good = write_chart(folder, charts[i], first->context, note);
        }
    }
    return good;
}

bool cli_compare_plot(const char *folder, const json_t *raw, const cli_compare_rows_t *rows)
{
    static cli_compare_rows_t named;
    bool good = true;
    named = *rows;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        cli_complain("cannot make the folder %s: %s", folder, strerror(errno));
        return false;
    }
    for (uint32_t i = 0; i < named.count; i++) {
        plain(named.row[i].compressor);
    }
    for (uint32_t i = 0, last; good && i < named.count; i = last) {
        for (last = i; last < named.count && named.row[last].context == named.row[i].context;) {
            last++;
        }
        good = plot_context(folder, raw, &named.row[i], &named.row[last]);
    }
    return good;
}
