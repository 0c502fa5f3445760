//! Passes the linker script to the linker.

fn main() {
    println!("cargo:rustc-link-arg-bins=-T{}/x86_64.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=x86_64.ld");
}
