/* CRC-32 as in zlib, by carry-less multiplication where the processor has it.

   Each compiled module that includes this has tables of its own, and calls sky_crc_prepare() once. */
#ifndef SKY_CRC32_H
#define SKY_CRC32_H
#include <stddef.h>
#include <stdint.h>

/* Eight tables: table[k][b] is the checksum of byte b followed by k zero bytes. */
static uint32_t sky_crc_table[8][256];
static int sky_crc_folds = 0;

static uint32_t sky_crc_bytes(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | ((uint32_t)p[1] << 8)
                              | ((uint32_t)p[2] << 16) | ((uint32_t)p[3] << 24));
        crc = sky_crc_table[7][low & 0xff] ^ sky_crc_table[6][(low >> 8) & 0xff]
            ^ sky_crc_table[5][(low >> 16) & 0xff] ^ sky_crc_table[4][low >> 24]
            ^ sky_crc_table[3][p[4]] ^ sky_crc_table[2][p[5]]
            ^ sky_crc_table[1][p[6]] ^ sky_crc_table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--) crc = (crc >> 8) ^ sky_crc_table[0][(crc ^ *p++) & 0xff];
    return crc;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SKY_CRC_FOLDING 1
#include <immintrin.h>

/* One step of folding: moves an accumulator forward over the distance its constants stand for,
   and adds the data found there. */
__attribute__((target("pclmul,sse4.1")))
static inline __m128i sky_fold(__m128i value, __m128i constants, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(value, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(value, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Carry-less multiplication after Gopal et al., "Fast CRC Computation for Generic Polynomials
   Using PCLMULQDQ" (Intel, 2009), in the bit-reflected form. n >= 64 and a multiple of 16. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t sky_crc_blocks(uint32_t crc, const uint8_t *p, size_t n) {
    /* x^(distance +- 32) mod P, reflected, for distances of 512, 128 and 64 bits. */
    const __m128i over_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i over_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i over_64 = _mm_set_epi64x(0, 0x0163cd6124);
    /* P and the quotient of x^64 by it, for the last (Barrett) reduction. */
    const __m128i reduction = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i words_0_and_2 = _mm_setr_epi32(-1, 0, -1, 0);
    const __m128i *block = (const __m128i *)p;
    __m128i a = _mm_loadu_si128(block);
    __m128i b = _mm_loadu_si128(block + 1);
    __m128i c = _mm_loadu_si128(block + 2);
    __m128i d = _mm_loadu_si128(block + 3);
    __m128i t;

    a = _mm_xor_si128(a, _mm_cvtsi32_si128((int)crc));
    block += 4;
    n -= 64;
    while (n >= 64) {
        a = sky_fold(a, over_512, _mm_loadu_si128(block));
        b = sky_fold(b, over_512, _mm_loadu_si128(block + 1));
        c = sky_fold(c, over_512, _mm_loadu_si128(block + 2));
        d = sky_fold(d, over_512, _mm_loadu_si128(block + 3));
        block += 4;
        n -= 64;
    }
    a = sky_fold(a, over_128, b);
    a = sky_fold(a, over_128, c);
    a = sky_fold(a, over_128, d);
    while (n >= 16) {
        a = sky_fold(a, over_128, _mm_loadu_si128(block));
        block += 1;
        n -= 16;
    }
    /* 128 bits to 96, to 64, to 32. */
    t = _mm_clmulepi64_si128(a, over_128, 0x10);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), t);
    t = _mm_srli_si128(a, 4);
    a = _mm_clmulepi64_si128(_mm_and_si128(a, words_0_and_2), over_64, 0x00);
    a = _mm_xor_si128(a, t);
    t = _mm_clmulepi64_si128(_mm_and_si128(a, words_0_and_2), reduction, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, words_0_and_2), reduction, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
}
#endif

static void sky_crc_prepare(void) {
    uint32_t byte;
    int k;
    for (byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (k = 0; k < 8; k++) value = (value >> 1) ^ (value & 1 ? 0xedb88320u : 0);
        sky_crc_table[0][byte] = value;
    }
    for (byte = 0; byte < 256; byte++)
        for (k = 1; k < 8; k++)
            sky_crc_table[k][byte] = (sky_crc_table[k - 1][byte] >> 8)
                ^ sky_crc_table[0][sky_crc_table[k - 1][byte] & 0xff];
#ifdef SKY_CRC_FOLDING
    __builtin_cpu_init();
    sky_crc_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

/* The checksum of some bytes that follow those with the checksum seed, 0 for none; as zlib's. */
static uint32_t sky_crc32(uint32_t seed, const uint8_t *p, size_t n) {
    uint32_t crc = ~seed;
#ifdef SKY_CRC_FOLDING
    if (sky_crc_folds && n >= 64) {
        size_t whole = n & ~(size_t)15;
        crc = sky_crc_blocks(crc, p, whole);
        p += whole;
        n -= whole;
    }
#endif
    return ~sky_crc_bytes(crc, p, n);
}

#endif
