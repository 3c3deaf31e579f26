// Vectors of W floats in GCC's vector extension: one source for AVX-512, AVX2 and NEON.
// Not compiled with -ffast-math: NaN and infinity mean what they mean.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int W = 16;
#else
constexpr int W = 8;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));
typedef uint8_t vb __attribute__((vector_size(W)));

struct bf16 {
    uint16_t bits;
};

enum Dtype : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

static inline vf splat(float x) { return x - vf{}; }

static inline vf load(const float* p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

static inline vf load(const bf16* p) {
    vh h;
    std::memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

// Round to nearest even; a NaN stays a NaN.
static inline vu to_bf16_bits(vf v) {
    vu u = (vu)v;
    vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return v == v ? rounded : (u >> 16) | 0x40;
}

static inline void store(bf16* p, vf v) {
    vh h = __builtin_convertvector(to_bf16_bits(v), vh);
    std::memcpy(p, &h, sizeof h);
}

// The first n < W elements; the other lanes are 0.
template <class T>
static inline vf load_part(const T* p, int n) {
    T lanes[W] = {};
    std::memcpy(lanes, p, n * sizeof(T));
    return load(lanes);
}

template <class T>
static inline void store_part(T* p, vf v, int n) {
    T lanes[W];
    store(lanes, v);
    std::memcpy(p, lanes, n * sizeof(T));
}

// Call body(offset, lanes) over n elements, W at a time; lanes < W only in the last call.
template <class Body>
static inline void in_vectors(int64_t n, Body body) {
    int64_t i = 0;
    for (; i + W <= n; i += W) body(i, W);
    if (i < n) body(i, int(n - i));
}

template <class T>
static inline vf load_lanes(const T* p, int n) {
    return n == W ? load(p) : load_part(p, n);
}

template <class T>
static inline void store_lanes(T* p, vf v, int n) {
    if (n == W)
        store(p, v);
    else
        store_part(p, v, n);
}

// v as it would be after a store to T and a load.
template <class T>
static inline vf rounded(vf v);
template <>
inline vf rounded<float>(vf v) { return v; }
template <>
inline vf rounded<bf16>(vf v) { return (vf)(to_bf16_bits(v) << 16); }

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
    uint32_t u = uint32_t(x.bits) << 16;
    float f;
    std::memcpy(&f, &u, sizeof f);
    return f;
}

static inline float sum(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float s = 0;
    for (int i = 0; i < W; i++) s += v[i];
    return s;
#endif
}

static inline float largest(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float most = v[0];
    for (int i = 1; i < W; i++) most = std::max(most, v[i]);
    return most;
#endif
}

static inline vf lane_index() {
    vf v;
    for (int i = 0; i < W; i++) v[i] = float(i);
    return v;
}

// exp(x) for x <= 0, relative error below 2e-7; below -87 it is 0, and a NaN stays a NaN.
static inline vf exp_nonpositive(vf x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x / ln 2) in the low bits
    vf shifted = x * 1.44269504f + magic;
    vf n = shifted - magic;
    vf r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vf power = (vf)(((vi)shifted + 127) << 23);
    return x < -87.0f ? vf{} : p * power;
}
