//! Assembly that both users' stubs consist of: what Go's functions expect of their registers.

/// From Go's registers to C's, for a function of seven arguments: the number of a call in rax, its arguments in rbx, rcx,
/// rdi, rsi, r8 and r9 (ABIInternal). The stack pointer is a multiple of 16, and the word that it points to is free.
#[macro_export]
macro_rules! c_arguments {
    () => {
        concat!(
            "mov qword ptr [rsp], r9\n",
            "mov r9, r8\n",
            "mov r8, rsi\n",
            "mov rdx, rcx\n",
            "mov rcx, rdi\n",
            "mov rsi, rbx\n",
            "mov rdi, rax\n",
        )
    };
}

/// The rest of `internal/runtime/syscall.Syscall6`: at label 3 the call goes to the kernel as it would. At 4 rax is what the kernel
/// or somebody in its place has answered, and rdx the second result; at 5 it is known to be an error.
#[macro_export]
macro_rules! kernel_or_result {
    () => {
        concat!(
            "3:\n",
            "mov r10, rsi\n",
            "mov rdx, rdi\n",
            "mov rsi, rcx\n",
            "mov rdi, rbx\n",
            "syscall\n",
            "4:\n",
            "cmp rax, -4095\n",
            "jae 5f\n",
            "mov rbx, rdx\n",
            "xor ecx, ecx\n",
            "ret\n",
            "5:\n",
            "neg rax\n",
            "mov rcx, rax\n",
            "mov rax, -1\n",
            "xor ebx, ebx\n",
            "ret\n",
        )
    };
}

/// `syscall.rawVforkSyscall` up to and with its system call: its arguments are on the stack (ABI0), and its return address is
/// in r12 while the child runs.
#[macro_export]
macro_rules! vfork_call {
    () => {
        concat!(
            "mov rdi, qword ptr [rsp + 0x10]\n",
            "mov rsi, qword ptr [rsp + 0x18]\n",
            "mov rdx, qword ptr [rsp + 0x20]\n",
            "xor r10d, r10d\n",
            "xor r8d, r8d\n",
            "xor r9d, r9d\n",
            "mov rax, qword ptr [rsp + 0x8]\n",
            "pop r12\n",
            "syscall\n",
            "push r12\n",
        )
    };
}
