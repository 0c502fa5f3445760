//! Selects the linker script of the architecture.

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo:rerun-if-changed=build.rs");
    // On the host, the kernel is a `main` that prints how to boot it, and has no linker script.
    if variable("CARGO_CFG_TARGET_OS") != "none" {
        return;
    }
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    let script = format!("{}/src/kernel/arch/{arch}/link.ld", variable("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
}
