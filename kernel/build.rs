//! Where the parts of the kernel lie in memory: one linker script for each architecture.

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo:rerun-if-changed=build.rs");
    // On the host there is nothing to link but a `main` that says what this is.
    if variable("CARGO_CFG_TARGET_OS") != "none" {
        return;
    }
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    let script = format!("{}/src/kernel/arch/{arch}/link.ld", variable("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
}
