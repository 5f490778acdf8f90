// SPDX-License-Identifier: Apache-2.0
// Routes of tenants. Stores name a tenant's blocks by scoped keys (as_key_scope), so the directory
// holds blocks of all tenants and never compares one's with another's. Whose chain a Route asks for
// its token says, which is checked here; without --cluster-key there is one tenant.
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "scheduler/scheduler.h"

#define LOOK_US 1000000u // between two looks at the key file
#define TELL_US 1000000u // between two lines in the log

struct sch_tenants {
    as_loop_t *loop;
    as_cluster_ring_t ring;
    as_timer_t *timer;
    as_key_t *scoped; // of the present question
    as_log_due_t due;
};

static void on_look(void *ctx)
{
    sch_tenants_t *tenants = ctx;
    as_cluster_ring_refresh(&tenants->ring);
    as_timer_start(tenants->timer, LOOK_US);
}

void sch_tenants_reload(sch_tenants_t *tenants)
{
    if (tenants) {
        as_cluster_ring_reload(&tenants->ring);
    }
}

as_status_t sch_tenants_alloc(as_loop_t *loop, const char *key_file, sch_tenants_t **tenants_p)
{
    sch_tenants_t *tenants = as_mem_zalloc(1, sizeof(*tenants));
    if (!tenants) {
        return AS_ERR_NO_MEMORY;
    }
    tenants->loop = loop;
    tenants->scoped = as_mem_zalloc(AS_CHAIN_BLOCKS_MAX, sizeof(as_key_t));
    as_status_t status = tenants->scoped ? AS_OK : AS_ERR_NO_MEMORY;
    if (status == AS_OK && as_cluster_ring_open(&tenants->ring, key_file) != AS_OK) {
        status = AS_ERR_CONFIG;
    }
    if (status == AS_OK) {
        status = as_timer_alloc(loop, on_look, tenants, &tenants->timer);
    }
    if (status != AS_OK) {
        sch_tenants_free(tenants);
        return status;
    }
    as_timer_start(tenants->timer, LOOK_US);
    *tenants_p = tenants;
    return AS_OK;
}

void sch_tenants_free(sch_tenants_t *tenants)
{
    if (tenants) {
        as_timer_free(tenants->timer);
        as_cluster_keys_wipe(&tenants->ring.keys);
        as_mem_free(tenants->scoped);
        as_mem_free(tenants);
    }
}

static void tell(sch_tenants_t *tenants, const char *what)
{
    as_metric_add(&sch_metrics[SCH_DENIED_ROUTES_TOTAL], 1);
    if (as_log_is_due(&tenants->due, as_loop_now_us(tenants->loop), TELL_US, NULL)) {
        AS_WARN("route", "a route is denied: its token %s", what);
    }
}

as_status_t sch_tenants_scope(sch_tenants_t *tenants, const Assay__RouteRequest *request,
                              const uint8_t **keys_p, const char **text_p)
{
    *keys_p = request->keys.data;
    if (!tenants) {
        return AS_OK;
    }
    as_token_t token;
    as_token_fault_t fault = as_token_check(&tenants->ring.keys, request->token.data,
                                            request->token.len, as_token_now_s(), &token);
    if (fault != AS_TOKEN_GOOD || !(token.rights & AS_TOKEN_READ)) {
        const char *what =
            fault == AS_TOKEN_GOOD ? "has not the right to read" : as_token_fault_str(fault);
        tell(tenants, what);
        *text_p = "the token does not do: see the scheduler's log";
        return AS_ERR_DENIED;
    }
    if (token.tenant != AS_TENANT_NONE) {
        as_keys_scope((const as_key_t *)(const void *)request->keys.data,
                      (uint32_t)(request->keys.len / sizeof(as_key_t)), token.tenant,
                      tenants->scoped);
        *keys_p = tenants->scoped->bytes;
    }
    return AS_OK;
}

as_status_t sch_tenants_issue(sch_tenants_t *tenants, const Assay__TokenRequest *request,
                              as_token_sealed_t *sealed_p)
{
    as_token_t token = {.tenant = request->tenant,
                        .rights = request->rights,
                        .not_after_s = as_token_now_s() + request->ttl_s};
    as_status_t status = as_token_sign(&tenants->ring.keys, &token, sealed_p);
    if (status == AS_OK) {
        char rights[AS_TOKEN_RIGHTS_BYTES];
        as_token_rights_format(token.rights, rights);
        AS_INFO("route", "a token of tenant %u for %s is issued, for %llu s", token.tenant, rights,
                (unsigned long long)request->ttl_s);
        as_metric_add(&sch_metrics[SCH_ISSUED_TOKENS_TOTAL], 1);
    }
    return status;
}
