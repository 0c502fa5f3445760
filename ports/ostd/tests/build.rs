//! Passes the linker script of the comparison's kernel to the linker.

fn main() {
    println!("cargo:rustc-link-arg-bins=-T{}/../kernel/x86_64.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=../kernel/x86_64.ld");
}
