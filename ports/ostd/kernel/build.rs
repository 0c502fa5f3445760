//! Passes the linker script of the architecture to the linker.

fn main() {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    // The linker runs in this folder.
    println!("cargo:rustc-link-arg-bins=-T{arch}.ld");
    println!("cargo:rerun-if-changed={arch}.ld");
    println!("cargo:rerun-if-changed=sections.ld");
}
