// Linear layers, and whole decoder layers in one call, in float32 or bfloat16 with a float32 residual stream.
//
// The layers of a decoder are hundreds of short loops. As calls of their own each of them wakes the threads and waits for
// them; here one parallel region runs them all, with barriers between that spin for some microseconds, then yield.

#include <sched.h>

#include <atomic>
#include <cmath>

#include "attention.hpp"
#include "gemm_q4.hpp"
#include "rows.hpp"

// A linear layer; see gemm.hpp and gemm_q4.hpp for how weights are packed.
struct Matrix {
    const void* weight;
    const uint8_t* four_bits;  // the same weight in four bits, or null
    const float* bias;         // or null
    int64_t weight_dtype;
};

struct LayerArgs {
    const float *attention_norm, *mlp_norm;
    const float *query_norm, *key_norm;  // [dim], of each head on its own; or null
    Matrix qkv, out, gate_up, down;
    void *key_cache, *value_cache;
};

// Scratch and caches are of one dtype, which is the attention's.
struct DecoderArgs {
    float* residual;         // [tokens, hidden], in and out
    void* x;                 // scratch [tokens, max(hidden, heads * dim)]
    void* qkv;               // scratch [tokens, (heads + 2 kv_heads) * dim]
    void* inner;             // scratch [tokens, intermediate]
    const float *cos, *sin;  // [tokens, dim / 2]
    const int64_t* slots;
    const LayerArgs* layers;
    AttentionArgs attention;  // of all layers; query, out and caches are set here
    int64_t hidden, intermediate, num_layers;
    float eps;
};

extern "C" int batchscope_block() { return BLOCK; }

extern "C" int batchscope_multiplies_bfloat16() {
#ifdef BATCHSCOPE_MULTIPLIES_BFLOAT16
    return 1;
#else
    return 0;
#endif
}

namespace {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

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
                relax();
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

// x [width] over its root mean square, times the weight.
template <class X, class Y>
inline void norm_row(const X* x, const float* weight, Y* y, int64_t width, float eps) {
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

// What becomes of a product's sums. One type for all of them, so that the products are compiled once.
enum class Use { STORE, ADD, SILU_MUL };

template <class Y>
struct Sums {
    Use use;
    Y* to;  // [rows, width]
    int64_t width;
    const float* bias;
    int64_t block = 0;

    void operator()(int64_t row, vf low, vf high) const {
        if (bias) low += load(bias + block * BLOCK), high += load(bias + block * BLOCK + W);
        Y* at = to + row * width + block * (use == Use::SILU_MUL ? W : BLOCK);
        if (use == Use::SILU_MUL) return store(at, silu(low) * high);  // gate and up, W of each in turn
        if (use == Use::ADD) low += load(at), high += load(at + W);
        store(at, low);
        store(at + W, high);
    }
};

// One block of x [rows, inputs] times a packed weight; rows are `stride` apart.
template <class X, class Y>
void product_block(const X* x, int64_t stride, int64_t rows, int64_t inputs, const Matrix& m, const Sums<Y>& sums) {
    const int64_t groups = inputs / GROUP;
    if (m.four_bits && rows <= FEW_ROWS)
        return gemm_block_q4(x, stride, rows, m.four_bits + sums.block * groups * GROUP_BYTES, inputs, sums);
    if constexpr (std::is_same_v<X, float>) {
        if (m.weight_dtype == FLOAT32)
            return gemm_block(x, stride, rows, (const float*)m.weight + sums.block * BLOCK * inputs, inputs, sums);
    }
    gemm_block(x, stride, rows, (const bf16*)m.weight + sums.block * BLOCK * inputs, inputs, sums);
}

// What all threads share in one call.
struct Shared {
    const DecoderArgs& d;
    const std::vector<Task>& tasks;
    Barrier barrier;
    std::vector<std::atomic<int64_t>> taken;  // five a layer
};

template <class T>
void run_layer(Shared& s, const LayerArgs& l, std::atomic<int64_t>* taken, int thread, int threads, Scratch* scratch) {
    const DecoderArgs& d = s.d;
    AttentionArgs a = d.attention;
    T *x = (T*)d.x, *qkv = (T*)d.qkv, *inner = (T*)d.inner;
    const int64_t tokens = a.tokens, dim = a.head_dim, query = a.heads * dim, kv = a.kv_heads * dim, width = query + 2 * kv;
    auto own_rows = [&](auto body) {
        for (int64_t t = thread; t < tokens; t += threads) body(t);
        s.barrier.wait();
    };
    auto norm = [&](const float* weight) {
        own_rows([&](int64_t t) { norm_row(d.residual + t * d.hidden, weight, x + t * d.hidden, d.hidden, d.eps); });
    };
    auto product = [&](std::atomic<int64_t>& taken, const T* x, int64_t inputs, const Matrix& m, int64_t outputs, auto sums) {
        share(taken, outputs / BLOCK, blocks_at_once(tokens), [&](int64_t block) {
            sums.block = block;
            product_block(x, inputs, tokens, inputs, m, sums);
        });
        s.barrier.wait();
    };
    norm(l.attention_norm);
    product(taken[0], x, d.hidden, l.qkv, width, Sums<T>{Use::STORE, qkv, width, l.qkv.bias});
    own_rows([&](int64_t t) {
        T *row = qkv + t * width, *key = row + query;
        if (l.query_norm)
            for (int64_t h = 0; h < a.heads; h++) norm_row(row + h * dim, l.query_norm, row + h * dim, dim, d.eps);
        if (l.key_norm)
            for (int64_t h = 0; h < a.kv_heads; h++) norm_row(key + h * dim, l.key_norm, key + h * dim, dim, d.eps);
        rotate(row, a.heads + a.kv_heads, dim / 2, d.cos + t * dim / 2, d.sin + t * dim / 2);
        write_token(key, key + kv, (T*)l.key_cache, (T*)l.value_cache, d.slots[t], a.kv_heads, dim, a.block_size);
    });
    a.query = qkv, a.query_stride = width, a.out = x, a.key_cache = l.key_cache, a.value_cache = l.value_cache;
    const int64_t count = int64_t(s.tasks.size());
    for (int64_t i = taken[1]++, next; i < count; i = next) {
        next = taken[1]++;
        attend<T>(a, s.tasks[i], next < count ? &s.tasks[next] : nullptr, scratch);
    }
    s.barrier.wait();
    product(taken[2], x, query, l.out, d.hidden, Sums<float>{Use::ADD, d.residual, d.hidden, l.out.bias});
    norm(l.mlp_norm);
    product(taken[3], x, d.hidden, l.gate_up, 2 * d.intermediate, Sums<T>{Use::SILU_MUL, inner, d.intermediate, l.gate_up.bias});
    product(taken[4], inner, d.intermediate, l.down, d.hidden, Sums<float>{Use::ADD, d.residual, d.hidden, l.down.bias});
}

template <class T>
void run_layers(const DecoderArgs& d) {
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
            run_layer<T>(shared, d.layers[i], &shared.taken[5 * i], thread, threads, scratch.data());
    }
}

template <class X, class Y>
void linear(const X* x, const Matrix& m, Y* y, int64_t rows, int64_t inputs, int64_t outputs, int64_t stride, int threads) {
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(threads)
    share(taken, outputs / BLOCK, blocks_at_once(rows), [&](int64_t block) {
        product_block(x, stride, rows, inputs, m, Sums<Y>{Use::STORE, y, outputs, m.bias, block});
    });
}

}  // namespace

extern "C" int batchscope_decoder_layers(const DecoderArgs* args) {
    const DecoderArgs& d = *args;
    if (int wrong = check(d.attention)) return wrong;
    for (int32_t t = 0; t < d.attention.tokens; t++)
        if (d.slots[t] < 0 || d.slots[t] >= d.attention.num_blocks * d.attention.block_size) return 2;
#ifdef BATCHSCOPE_MULTIPLIES_BFLOAT16
    if (d.attention.cache_dtype == BFLOAT16) return run_layers<bf16>(d), 0;
#endif
    return run_layers<float>(d), 0;
}

// y [rows, outputs] = x [rows, inputs] times a packed weight; rows of x are `stride` apart. y is float32 or x's dtype.
extern "C" void batchscope_linear(const void* x, const Matrix* matrix, void* y, int64_t rows, int64_t inputs, int64_t outputs,
                                  int64_t stride, int x_dtype, int y_dtype, int threads) {
#ifdef BATCHSCOPE_MULTIPLIES_BFLOAT16
    if (x_dtype == BFLOAT16 && y_dtype == BFLOAT16)
        return linear((const bf16*)x, *matrix, (bf16*)y, rows, inputs, outputs, stride, threads);
    if (x_dtype == BFLOAT16) return linear((const bf16*)x, *matrix, (float*)y, rows, inputs, outputs, stride, threads);
#endif
    linear((const float*)x, *matrix, (float*)y, rows, inputs, outputs, stride, threads);
}
