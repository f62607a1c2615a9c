// Vectors as the compiler takes them for any processor, and what is done with them.

#pragma once

#include <c10/util/BFloat16.h>

#include <bit>
#include <cstdint>

namespace {

constexpr int kLanes = 8;  // floats of a vector
typedef float Lanes __attribute__((vector_size(kLanes * 4)));
typedef int32_t Whole __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef float Four __attribute__((vector_size(16)));

inline float wide(float x) { return x; }
inline float wide(c10::BFloat16 x) { return std::bit_cast<float>(uint32_t(x.x) << 16); }

inline Lanes load(const float* at) {
  Lanes x;
  __builtin_memcpy(&x, at, sizeof x);
  return x;
}

inline Lanes load(const c10::BFloat16* at) {
  Halves x;
  __builtin_memcpy(&x, at, sizeof x);
  return reinterpret_cast<Lanes>(__builtin_convertvector(x, Words) << 16);
}

inline void store(float* at, Lanes x) { __builtin_memcpy(at, &x, sizeof x); }

// Rounded to the nearest, a tie to even; what is no number stays none.
inline void store(c10::BFloat16* at, Lanes x) {
  Words bits = reinterpret_cast<Words>(x);
  Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  rounded = x == x ? rounded : Words{} + 0x7fc0;
  Halves half = __builtin_convertvector(rounded, Halves);
  __builtin_memcpy(at, &half, sizeof half);
}

// As they lie: of bfloat16 two numbers in each place.
template <class T>
inline Lanes load_bits(const T* at) {
  Lanes x;
  __builtin_memcpy(&x, at, sizeof x);
  return x;
}

inline Lanes first_of(Lanes pairs) {
  return reinterpret_cast<Lanes>(reinterpret_cast<Words>(pairs) << 16);
}

inline Lanes second_of(Lanes pairs) {
  return reinterpret_cast<Lanes>(reinterpret_cast<Words>(pairs) & 0xffff0000u);
}

inline float sum(Lanes x) {
  Four y = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
  y += __builtin_shufflevector(y, y, 2, 3, 0, 1);
  return y[0] + y[1];
}

inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

inline float largest(Lanes x) {
  float most = x[0];
  for (int i = 1; i < kLanes; i++) most = x[i] > most ? x[i] : most;
  return most;
}

// e to the x, for x <= 0: 2 to the whole part by the exponent's bits, 2 to the rest (0 to 1) by a
// polynomial, off by 2e-7 at most. What is no number stays none, so that it is seen.
inline Lanes exp_of(Lanes x) {
  Lanes power = larger(x * 1.44269504f, Lanes{} - 125.0f);
  Whole whole = __builtin_convertvector(power, Whole);  // towards 0
  Lanes rest = power - __builtin_convertvector(whole, Lanes) + 1.0f;
  Lanes p = rest * 1.8775767e-3f + 8.9893397e-3f;
  p = p * rest + 5.5826318e-2f;
  p = p * rest + 2.4015361e-1f;
  p = p * rest + 6.9315308e-1f;
  p = p * rest + 9.9999994e-1f;
  p *= reinterpret_cast<Lanes>((whole + 126) << 23);
  return x == x ? p : x;
}

// Eight vectors as the columns of what they were the rows of.
inline void transpose(Lanes (&x)[kLanes]) {
  Lanes y[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < kLanes; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      Lanes a = y[i + j], b = y[i + j + 2];
      x[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      x[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kLanes / 2; i++) {
    Lanes a = x[i], b = x[i + 4];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

}  // namespace
