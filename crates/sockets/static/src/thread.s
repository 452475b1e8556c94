# Thread-local storage of sluice-static, in every thread.
#
# Go's programs, which the linker of Go has linked alone, keep the running goroutine's descriptor (g) in the eight
# bytes below the thread pointer. In the C library's threads these are the end of the program's own thread-local
# storage, as the ELF TLS ABI (variant II) puts it there. A block that is as large as it is aligned, and that is linked
# last, ends at the thread pointer; main.rs looks whether it does.
        .section .tbss,"awT",@nobits
        .balign 64
        .globl  sluice_static_thread
        .hidden sluice_static_thread
        .type   sluice_static_thread, @object
        .size   sluice_static_thread, 64
sluice_static_thread:
        .zero   64
        .section .note.GNU-stack,"",@progbits
