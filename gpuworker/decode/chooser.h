// SPDX-License-Identifier: Apache-2.0
// Which compressor a session drafts on, where its request leaves that to the worker ("auto").
//
// A method is a row of the compressors' table or, as the last of them, plain decoding over a full cache in
// memory. A session among n, on a context of L tokens and with an answer of A, has the worker yield
//
//   n A / (A t + n C c + g f)   tokens a second, were all n like it
//
//   t   a token's time: that of a round by what it yields, at the horizon that yields most. Formulas and
//       load (n, g) are those of decode/horizon.h, so that this choice and that of the horizon agree.
//       Of plain decoding: n d, since a token costs what a draft does, and none is verified
//   c   device time to compress a token, C: tokens of the context that the session compresses itself
//   f   link time of its prefix, less where stores are known to have that in a method's form
//
// with, as it was measured,
//
//   a   accepted by tried of the method's drafts
//   d   of a draft the method's attention, for each token of context, times L; and all else, which is the
//       same for every method
//   v   of a verified row the same, over the full cache: the same for every method
//   s   of the link for a swap, 0 where memory holds the full caches of n such sessions
//
// What was measured at contexts of other lengths counts less (known_t). Of methods that are a candidate and
// were measured that of the most tokens a second is chosen; where none was, the first of the table. What
// sessions on the same chain hold is chosen as long as it yields nearly as much: its blocks are there.
//
// Else now and then a method is tried: at most TRIALS_ROOT * (sqrt(choices) - 1) of the choices so far and
// one in a hundred, and never two close together. It is the one that could yield most if it failed as rarely as
// may still be: a rate of failure known from m sessions may be 1 + 1 / sqrt(m) times too high, of one that
// was never measured anything. Where none could yield more than the best is expected to, none is tried. Sessions that
// stand behind a measurement count less with every choice, so old news is looked into again.
//
// A pure function of what it was told: no clock, no chance. Of a worker; engine thread only.
#ifndef GPW_CHOOSER_H
#define GPW_CHOOSER_H

#include <stddef.h>

#include "gpuworker/decode/horizon.h"
#include "gpuworker/worker.h"

#define GPW_METHODS_MAX     64u
#define GPW_CHOOSER_LENGTHS 4u // classes of contexts: up to 1,024 tokens, 4,096, 16,384, and longer

// Of a method at contexts of one class; sums, of which older parts count less.
typedef struct gpw_known {
    double sessions;        // that it was measured in; one that drafted little counts in part
    double accepted, tried; // drafts
    double attend_us;       // of drafts' attention, device time, over
    double attend_tokens;   // so many tokens of context
} gpw_known_t;

typedef struct gpw_method {
    gpw_known_t known[GPW_CHOOSER_LENGTHS];
    double seal_us, seal_tokens; // device time to compress so many tokens
    double bytes_per_token;      // of a segment; 0: not measured
    uint32_t trials;             // under way
} gpw_method_t;

typedef struct gpw_chooser {
    const char *const *names; // [count]
    uint32_t count;           // methods; the last is plain decoding
    gpw_method_t method[GPW_METHODS_MAX];
    double draft_us; // of a draft without attention; 0: not known
    double row_us,
        row_attend_us; // of a verified row without attention, and that for each token; 0: not known
    double answer_tokens; // of an answer; 0: not known
    double sessions;      // that want a turn at once: the most of late
    uint64_t choices, trials, last_trial;
} gpw_chooser_t;

// A method as one request could have it.
typedef struct gpw_candidate {
    bool possible;
    uint32_t sessions; // like it that the memory has room for at once
    uint64_t bytes;    // of its cache on the device: of methods that were never tried, more first
    double swap_us;    // s
    double fetch_us;   // f
    uint32_t seal_tokens; // C
    uint32_t held;        // sessions on its chain that share blocks of it
} gpw_candidate_t;

typedef struct gpw_chooser_ask {
    uint32_t prompt_tokens, answer_tokens; // answer: at most
    uint32_t horizon;                      // the longest draft, or the one of every round
    bool horizon_fixed;
    gpw_horizon_load_t load; // with this one; sessions: that want a turn. swap_us is a candidate's
    gpw_candidate_t candidate[GPW_METHODS_MAX];
} gpw_chooser_ask_t;

typedef enum gpw_pick_reason {
    GPW_PICK_ONLY,  // no other is a candidate
    GPW_PICK_FIRST, // nothing is known yet
    GPW_PICK_BEST,
    GPW_PICK_HELD,
    GPW_PICK_TRIAL
} gpw_pick_reason_t;

typedef struct gpw_pick {
    uint32_t method;
    gpw_pick_reason_t reason;
    // The best besides it, or that it is tried instead of; `method` itself: there is none.
    uint32_t other;
    double acceptance; // a; of plain decoding 1
    double measured;   // sessions that it was measured in
    uint32_t sessions; // n
    uint32_t tokens;   // L
    uint32_t held;
    bool timed; // rates are tokens a second; else nothing was timed, and they only compare
    double rates[GPW_METHODS_MAX]; // 0: no candidate, or not measured
} gpw_pick_t;

// What came of a round.
typedef struct gpw_lesson {
    uint32_t method;
    uint32_t context_tokens;
    uint32_t taught; // drafts that the session's lessons tried before
    gpw_horizon_outcome_t outcome;
} gpw_lesson_t;

// The names stay the caller's.
void gpw_chooser_init(gpw_chooser_t *chooser, const char *const *names, uint32_t count);
// False: no candidate is possible. A trial is to be ended.
bool gpw_chooser_pick(gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask, gpw_pick_t *pick_p);
void gpw_chooser_end_trial(gpw_chooser_t *chooser, uint32_t method);
// The reason in plain words.
void gpw_chooser_explain(const gpw_chooser_t *chooser, const gpw_pick_t *pick,
                         char text[GPW_CHOSEN_BYTES]);
// Returns how many drafts of it were tried, for `taught`.
uint32_t gpw_chooser_learn(gpw_chooser_t *chooser, const gpw_lesson_t *lesson);
// So many tokens were compressed, into so many bytes.
typedef struct gpw_sealing {
    uint32_t method, tokens;
    uint64_t bytes;
    double us;
} gpw_sealing_t;
void gpw_chooser_sealed(gpw_chooser_t *chooser, const gpw_sealing_t *sealing);
void gpw_chooser_answered(gpw_chooser_t *chooser, uint32_t tokens); // a request is complete
// What is known of the method's drafts at such a context, for a session that knows nothing of its own.
// False: nothing is.
bool gpw_chooser_expect(const gpw_chooser_t *chooser, uint32_t method, uint32_t tokens,
                        gpw_horizon_t *horizon);

#endif
