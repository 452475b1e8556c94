// Addresses that could be mapped and are not, where bad_pointers.c has those that never are.
//: lane any
//: known-fault bytes of a ring are copied by the program itself, which a bad address kills
#define UNMAPPED
#include "bad_pointers.c"
