/* A kernel's own header of integer types. */
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t, size_t;
typedef _Bool bool;
