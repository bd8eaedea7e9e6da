// What a chain of window binds and the chain of their invalidations cost without anything on top: the floor that
// tests/rdma/cost.rs is measured against, in the same boot.
//
//   floor ROUNDS
//
// Prints, for chains of 16 and of 64, the median over the rounds of nanoseconds a window. Device: the first one,
// GID index 1, as in the virtual machine of tests/rdma/rxe-vm.
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WINDOWS = 64, PAGE = 4096, ROUNDS_MAX = 4096 };

struct rig {
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *parent;
    char *memory;
    struct ibv_mw *windows[WINDOWS];
    uint32_t keys[WINDOWS];
    struct ibv_send_wr binds[WINDOWS], invalidations[WINDOWS];
};

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median(uint64_t *samples, int count, int of) {
    qsort(samples, (size_t)count, sizeof *samples, by_size);
    return (double)samples[count / 2] / of;
}

// A QP that is its own peer: nothing here goes over the wire.
static void connect_to_itself(struct rig *r, struct ibv_context *context) {
    union ibv_gid gid;
    must(!ibv_query_gid(context, 1, 1, &gid), "GID");
    struct ibv_qp_init_attr make = {
        .send_cq = r->cq,
        .recv_cq = r->cq,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4 * WINDOWS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    r->qp = ibv_create_qp(r->pd, &make);
    must(r->qp != NULL, "create_qp");
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    a.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    must(!ibv_modify_qp(r->qp, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), "INIT");
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = r->qp->qp_num;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = gid;
    a.ah_attr.grh.sgid_index = 1;
    a.ah_attr.grh.hop_limit = 1;
    must(!ibv_modify_qp(r->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = 6;
    must(!ibv_modify_qp(r->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void post(struct rig *r, struct ibv_send_wr *chain) {
    struct ibv_send_wr *bad;
    must(!ibv_post_send(r->qp, chain, &bad), "post_send");
}

static void wait_for_one(struct rig *r) {
    struct ibv_wc wc;
    int got;
    while ((got = ibv_poll_cq(r->cq, 1, &wc)) == 0) {}
    must(got == 1 && wc.status == IBV_WC_SUCCESS, "completion");
}

// Both chains anew, each window under its next key; only the last WR of a chain is signaled.
static void fill(struct rig *r, int count, int signal_binds) {
    for (int i = 0; i < count; i++) {
        int last = i + 1 == count;
        r->windows[i]->rkey = r->keys[i];
        r->keys[i] = ibv_inc_rkey(r->keys[i]);
        r->binds[i] = (struct ibv_send_wr){
            .next = last ? NULL : &r->binds[i + 1],
            .opcode = IBV_WR_BIND_MW,
            .send_flags = last && signal_binds ? IBV_SEND_SIGNALED : 0,
            .bind_mw = {
                .mw = r->windows[i],
                .rkey = r->keys[i],
                .bind_info = {
                    .mr = r->parent,
                    .addr = (uintptr_t)r->memory + (uintptr_t)i * PAGE,
                    .length = PAGE,
                    .mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
                },
            },
        };
        r->invalidations[i] = (struct ibv_send_wr){
            .next = last ? NULL : &r->invalidations[i + 1],
            .opcode = IBV_WR_LOCAL_INV,
            .send_flags = last ? IBV_SEND_SIGNALED : 0,
            .invalidate_rkey = r->keys[i],
        };
    }
}

static double chains(struct rig *r, int count, int rounds, int wait_for_binds) {
    static uint64_t samples[ROUNDS_MAX];
    for (int i = 0; i < rounds; i++) {
        uint64_t start = now();
        fill(r, count, wait_for_binds);
        post(r, r->binds);
        if (wait_for_binds) wait_for_one(r);
        post(r, r->invalidations);
        wait_for_one(r);
        samples[i] = now() - start;
    }
    return median(samples, rounds, count);
}

static double registrations(struct rig *r, int rounds) {
    static uint64_t samples[ROUNDS_MAX];
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    for (int i = 0; i < rounds; i++) {
        uint64_t start = now();
        struct ibv_mr *mr = ibv_reg_mr(r->pd, r->memory, PAGE, rights);
        must(mr && !ibv_dereg_mr(mr), "registration");
        samples[i] = now() - start;
    }
    return median(samples, rounds, 1);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    must(rounds > 0 && rounds <= ROUNDS_MAX, "rounds");
    struct ibv_device **list = ibv_get_device_list(NULL);
    must(list && list[0], "no device");
    struct ibv_context *context = ibv_open_device(list[0]);
    must(context != NULL, "open_device");
    struct rig r = { .pd = ibv_alloc_pd(context), .cq = ibv_create_cq(context, 4 * WINDOWS, NULL, NULL, 0) };
    must(r.pd && r.cq && !posix_memalign((void **)&r.memory, PAGE, WINDOWS * PAGE), "objects");
    memset(r.memory, 1, WINDOWS * PAGE);
    connect_to_itself(&r, context);
    r.parent = ibv_reg_mr(r.pd, r.memory, WINDOWS * PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    must(r.parent != NULL, "reg_mr");
    for (int i = 0; i < WINDOWS; i++) {
        r.windows[i] = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
        must(r.windows[i] != NULL, "alloc_mw");
        r.keys[i] = r.windows[i]->rkey;
    }
    printf("floor registration %.0f\n", registrations(&r, rounds));
    for (int count = 16; count <= 64; count *= 4) {
        printf("floor chain %d %.0f\n", count, chains(&r, count, rounds, 1));
        printf("floor-one-wait chain %d %.0f\n", count, chains(&r, count, rounds, 0));
    }
    return 0;
}
