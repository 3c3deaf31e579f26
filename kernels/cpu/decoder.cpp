// Linear layers, and whole decoder layers in one call, in bfloat16 with a float32 residual stream.
//
// The layers of a decoder are hundreds of short loops. As calls of their own each of them wakes the threads and waits for
// them; here one parallel region runs them all, with barriers between that spin for some microseconds, then yield.

#include <sched.h>

#include <atomic>
#include <cmath>

#include "attention.hpp"
#include "gemm_q4.hpp"
#include "rows.hpp"

struct LayerArgs {
    const float *attention_norm, *mlp_norm;
    const bf16 *qkv, *out, *gate_up, *down;
    const uint8_t *qkv_q4, *out_q4, *gate_up_q4, *down_q4;  // the same weights in four bits, or null
    bf16 *key_cache, *value_cache;
};

struct DecoderArgs {
    float* residual;        // [tokens, hidden], in and out
    bf16* x;                // scratch [tokens, max(hidden, heads * dim)]
    bf16* qkv;              // scratch [tokens, (heads + 2 kv_heads) * dim]
    bf16* inner;            // scratch [tokens, intermediate]
    const float *cos, *sin;  // [tokens, dim / 2]
    const int64_t* slots;
    const LayerArgs* layers;
    AttentionArgs attention;  // of all layers; query, out and caches are set here
    int64_t hidden, intermediate, num_layers;
    float eps;
};

extern "C" int batchscope_has_gemm() {
#ifdef BATCHSCOPE_GEMM
    return 1;
#else
    return 0;
#endif
}

#ifdef BATCHSCOPE_GEMM

namespace {

constexpr int SPINS = 400;  // pauses before a waiting thread offers its core to others

class Barrier {
public:
    void expect(int threads) { threads_ = threads; }

    void wait() {
        const int round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
            return;
        }
        for (int i = 0; round_.load(std::memory_order_acquire) == round; i++) {
            if (i < SPINS)
                _mm_pause();
            else
                sched_yield();
        }
    }

private:
    int threads_ = 1;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
};

// Share out `count` pieces of work: a thread takes the next few when it is done with the last.
template <class Body>
inline void share(std::atomic<int64_t>& taken, int64_t count, int64_t at_once, Body body) {
    for (int64_t first; (first = taken.fetch_add(at_once, std::memory_order_relaxed)) < count;)
        for (int64_t i = first; i < std::min(first + at_once, count); i++) body(i);
}

// Blocks of a product that a thread takes at once: with few rows they go by fast.
inline int64_t blocks_at_once(int64_t rows) { return rows <= 16 ? 4 : 1; }

inline void norm_to_bf16(const float* x, const float* weight, bf16* y, int64_t width, float eps) {
    vf squares = {};
    in_vectors(width, [&](int64_t i, int lanes) {
        vf v = load_lanes(x + i, lanes);
        squares += v * v;
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
    in_vectors(width, [&](int64_t i, int lanes) {
        store_lanes(y + i, load_lanes(x + i, lanes) * scale * load_lanes(weight + i, lanes), lanes);
    });
}

// What all threads share in one call.
struct Shared {
    const DecoderArgs& d;
    const std::vector<Task>& tasks;
    Barrier barrier;
    std::vector<std::atomic<int64_t>> taken;  // five a layer
};

void run_layer(Shared& s, const LayerArgs& l, std::atomic<int64_t>* taken, int thread, int threads, Scratch* scratch) {
    const DecoderArgs& d = s.d;
    AttentionArgs a = d.attention;
    const int64_t tokens = a.tokens, dim = a.head_dim, query = a.heads * dim, kv = a.kv_heads * dim, width = query + 2 * kv;
    const int64_t few = blocks_at_once(tokens);
    auto own_rows = [&](auto body) {
        for (int64_t t = thread; t < tokens; t += threads) body(t);
        s.barrier.wait();
    };
    auto product = [&](std::atomic<int64_t>& taken, const bf16* x, const bf16* weight, const uint8_t* weight_q4,
                       int64_t inputs, int64_t blocks, auto finish) {
        share(taken, blocks, few, [&](int64_t block) {
            auto finish_row = [&](int64_t row, vf low, vf high) { finish(row, block, low, high); };
            if (weight_q4 && tokens <= FEW_ROWS)
                gemm_block_q4(x, inputs, tokens, weight_q4 + block * (inputs / GROUP) * GROUP_BYTES, inputs, finish_row);
            else
                gemm_block(x, inputs, tokens, weight + block * BLOCK * inputs, inputs, finish_row);
        });
        s.barrier.wait();
    };
    auto add = [&](int64_t row, int64_t block, vf low, vf high) {
        float* to = d.residual + row * d.hidden + block * BLOCK;
        store(to, load(to) + low);
        store(to + W, load(to + W) + high);
    };
    own_rows([&](int64_t t) { norm_to_bf16(d.residual + t * d.hidden, l.attention_norm, d.x + t * d.hidden, d.hidden, d.eps); });
    product(taken[0], d.x, l.qkv, l.qkv_q4, d.hidden, width / BLOCK, [&](int64_t row, int64_t block, vf low, vf high) {
        bf16* to = d.qkv + row * width + block * BLOCK;
        store(to, low);
        store(to + W, high);
    });
    own_rows([&](int64_t t) {
        bf16* row = d.qkv + t * width;
        rotate(row, a.heads + a.kv_heads, dim / 2, d.cos + t * dim / 2, d.sin + t * dim / 2);
        write_token(row + query, row + query + kv, l.key_cache, l.value_cache, d.slots[t], a.kv_heads, dim, a.block_size);
    });
    a.query = d.qkv, a.query_stride = width, a.out = d.x, a.key_cache = l.key_cache, a.value_cache = l.value_cache;
    const int64_t count = int64_t(s.tasks.size());
    for (int64_t i = taken[1]++, next; i < count; i = next) {
        next = taken[1]++;
        attend<bf16>(a, s.tasks[i], next < count ? &s.tasks[next] : nullptr, scratch);
    }
    s.barrier.wait();
    product(taken[2], d.x, l.out, l.out_q4, query, d.hidden / BLOCK, add);
    own_rows([&](int64_t t) { norm_to_bf16(d.residual + t * d.hidden, l.mlp_norm, d.x + t * d.hidden, d.hidden, d.eps); });
    product(taken[3], d.x, l.gate_up, l.gate_up_q4, d.hidden, 2 * d.intermediate / BLOCK, [&](int64_t row, int64_t block, vf gate, vf up) {
        store(d.inner + row * d.intermediate + block * W, silu(gate) * up);
    });
    product(taken[4], d.inner, l.down, l.down_q4, d.intermediate, d.hidden / BLOCK, add);
}

}  // namespace

extern "C" int batchscope_decoder_layers(const DecoderArgs* args) {
    const DecoderArgs& d = *args;
    if (int wrong = check(d.attention)) return wrong;
    for (int32_t t = 0; t < d.attention.tokens; t++)
        if (d.slots[t] < 0 || d.slots[t] >= d.attention.num_blocks * d.attention.block_size) return 2;
    const std::vector<Task> tasks = attention_tasks(d.attention);
    Shared shared{d, tasks, {}, std::vector<std::atomic<int64_t>>(5 * d.num_layers)};
#pragma omp parallel num_threads(d.attention.threads)
    {
        static thread_local std::vector<Scratch> scratch;
        if (int(scratch.size()) < d.attention.kv_heads) scratch.resize(d.attention.kv_heads);
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#pragma omp single
        shared.barrier.expect(threads);
        for (int64_t i = 0; i < d.num_layers; i++)
            run_layer(shared, d.layers[i], &shared.taken[5 * i], thread, threads, scratch.data());
    }
    return 0;
}

template <class Y>
static void linear(const bf16* x, const bf16* weight, Y* y, int64_t rows, int64_t inputs, int64_t outputs, int64_t stride,
                   int threads) {
    const int64_t blocks = outputs / BLOCK, few = blocks_at_once(rows);
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(threads)
    share(taken, blocks, few, [&](int64_t block) {
        gemm_block(x, stride, rows, weight + block * BLOCK * inputs, inputs, [&](int64_t row, vf low, vf high) {
            Y* to = y + row * outputs + block * BLOCK;
            store(to, low);
            store(to + W, high);
        });
    });
}

// y [rows, outputs] = x [rows, inputs] times a packed weight; rows of x are `stride` apart. y in y_dtype.
extern "C" void batchscope_linear(const bf16* x, const bf16* weight, void* y, int64_t rows, int64_t inputs, int64_t outputs,
                                  int64_t stride, int y_dtype, int threads) {
    if (y_dtype == BFLOAT16)
        linear(x, weight, (bf16*)y, rows, inputs, outputs, stride, threads);
    else
        linear(x, weight, (float*)y, rows, inputs, outputs, stride, threads);
}

#endif
