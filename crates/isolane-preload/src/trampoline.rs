//! Calls a hook with the first six arguments of a function, then continues in the C library's function as if the program
//! had called that. So functions with any arguments and results can have a hook, those with variable arguments included.

/// Defines functions that call `hook` first. It returns the address of the C library's function.
macro_rules! hooked {
    ($($name:ident => $hook:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn hook(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> *mut std::ffi::c_void {
                static FUNCTION: $crate::real::Function =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => $crate::real::Function::new(name),
                        Err(_) => panic!(),
                    };
                $hook([a, b, c, d, e, f]);
                FUNCTION.address()
            }
            $crate::trampoline::save_call_continue!(hook)
        }
    )*};
}
pub(crate) use hooked;

/// Registers of arguments are saved around the call, with those of floating point, and the stack stays aligned.
#[cfg(target_arch = "x86_64")]
macro_rules! save_call_continue {
    ($hook:ident) => {
        std::arch::naked_asm!(
            "sub rsp, 200",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], rax",
            "movups [rsp + 64], xmm0",
            "movups [rsp + 80], xmm1",
            "movups [rsp + 96], xmm2",
            "movups [rsp + 112], xmm3",
            "movups [rsp + 128], xmm4",
            "movups [rsp + 144], xmm5",
            "movups [rsp + 160], xmm6",
            "movups [rsp + 176], xmm7",
            "call {hook}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov rax, [rsp + 48]",
            "movups xmm0, [rsp + 64]",
            "movups xmm1, [rsp + 80]",
            "movups xmm2, [rsp + 96]",
            "movups xmm3, [rsp + 112]",
            "movups xmm4, [rsp + 128]",
            "movups xmm5, [rsp + 144]",
            "movups xmm6, [rsp + 160]",
            "movups xmm7, [rsp + 176]",
            "add rsp, 200",
            "jmp r11",
            hook = sym $hook,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! save_call_continue {
    ($hook:ident) => {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, -224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, 16]",
            "stp x2, x3, [sp, 32]",
            "stp x4, x5, [sp, 48]",
            "stp x6, x7, [sp, 64]",
            "str x8, [sp, 80]",
            "stp q0, q1, [sp, 96]",
            "stp q2, q3, [sp, 128]",
            "stp q4, q5, [sp, 160]",
            "stp q6, q7, [sp, 192]",
            "bl {hook}",
            "mov x16, x0",
            "ldp x0, x1, [sp, 16]",
            "ldp x2, x3, [sp, 32]",
            "ldp x4, x5, [sp, 48]",
            "ldp x6, x7, [sp, 64]",
            "ldr x8, [sp, 80]",
            "ldp q0, q1, [sp, 96]",
            "ldp q2, q3, [sp, 128]",
            "ldp q4, q5, [sp, 160]",
            "ldp q6, q7, [sp, 192]",
            "ldp x29, x30, [sp], 224",
            "br x16",
            hook = sym $hook,
        )
    };
}
pub(crate) use save_call_continue;
