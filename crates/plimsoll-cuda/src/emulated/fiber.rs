//! Fibers: stacks that one thread of the operating system runs in turn.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A suspended flow of control: its stack pointer, with the registers that a call preserves above it.
pub type Context = *mut u8;

/// What a fiber has of stack. The compiler refuses kernels with larger frames than half of it (`module`).
pub const STACK_BYTES: usize = 64 << 10;

/// Stacks do not begin at equal places of a page, or all their tops would compete for the same lines of the cache.
const STRIDE_BYTES: usize = STACK_BYTES + 5 * 64;

/// Memory for the stacks of some fibers.
pub struct Stacks {
    base: NonNull<u8>,
    layout: Layout,
}

impl Stacks {
    /// Room for so many; it is touched only where fibers run.
    pub fn new(n_fibers: usize) -> Stacks {
        let layout = Layout::from_size_align(n_fibers * STRIDE_BYTES, 64).expect("a machine has few fibers");
        // SAFETY: the layout is not empty: machines have threads.
        let base = unsafe { alloc(layout) };
        Stacks { base: NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// A new fiber on the stack of that number, which will begin with `main(argument)` when it is first switched to;
    /// whatever ran there is forgotten.
    ///
    /// # Safety
    /// The number is less than that of the fibers. `main` never returns.
    pub unsafe fn fiber(&self, idx: usize, main: extern "C" fn(usize) -> !, argument: usize) -> Context {
        // SAFETY: the stack lies within the memory; its end is a multiple of 64, and the frame lies below it.
        unsafe {
            let top = self.base.as_ptr().add(idx * STRIDE_BYTES + STACK_BYTES).cast::<usize>();
            let frame = top.sub(FRAME_WORDS);
            frame.write_bytes(0, FRAME_WORDS);
            frame.add(FRAME_MAIN).write(main as *const () as usize);
            frame.add(FRAME_ARGUMENT).write(argument);
            frame.add(FRAME_RETURN).write(start as *const () as usize);
            frame.cast()
        }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// The first frame of a fiber, in words from the stack pointer: what `switch` takes from there, and where `start` finds
/// what to call.
#[cfg(target_arch = "x86_64")]
const FRAME_WORDS: usize = 7;
#[cfg(target_arch = "x86_64")]
const FRAME_MAIN: usize = 2;
#[cfg(target_arch = "x86_64")]
const FRAME_ARGUMENT: usize = 3;
#[cfg(target_arch = "x86_64")]
const FRAME_RETURN: usize = 6;

/// Saves the running flow in `*from` and goes on with `to`. It jumps where others return: the processor predicts returns
/// by the calls that it saw, which were another flow's, and a switch takes half the time without that.
///
/// # Safety
/// `to` was saved by `switch` or made by `Stacks::fiber`, and has not been gone on with since.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn switch(from: *mut Context, to: Context) {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "pop rcx",
        "jmp rcx",
    )
}

/// Where a new fiber begins: the frame has put its function into r13 and the argument into r12.
#[cfg(target_arch = "x86_64")]
// SAFETY: it only calls a function that never returns, with the stack aligned as a call wants it.
#[unsafe(naked)]
extern "C" fn start() {
    std::arch::naked_asm!("mov rdi, r12", "call r13", "ud2")
}

#[cfg(target_arch = "aarch64")]
const FRAME_WORDS: usize = 20;
#[cfg(target_arch = "aarch64")]
const FRAME_MAIN: usize = 0;
#[cfg(target_arch = "aarch64")]
const FRAME_ARGUMENT: usize = 1;
#[cfg(target_arch = "aarch64")]
const FRAME_RETURN: usize = 11;

/// Saves the running flow in `*from` and goes on with `to`.
///
/// # Safety
/// `to` was saved by `switch` or made by `Stacks::fiber`, and has not been gone on with since.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn switch(from: *mut Context, to: Context) {
    std::arch::naked_asm!(
        "sub sp, sp, #160",
        "stp x19, x20, [sp, #0]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov sp, x1",
        "ldp x19, x20, [sp, #0]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #160",
        "br x30",
    )
}

/// Where a new fiber begins: the frame has put its function into x19 and the argument into x20.
#[cfg(target_arch = "aarch64")]
// SAFETY: it only calls a function that never returns, with the stack aligned as a call wants it.
#[unsafe(naked)]
extern "C" fn start() {
    std::arch::naked_asm!("mov x0, x20", "blr x19", "brk #1")
}
