//! Compiles the protocol with protox (no protoc needed) and generates code and descriptor set.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["retrybudget/v1/budget.proto", "retrybudget/v1/admin.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // With the comments: what docs/api-reference.md is made of.
    fs::write(out.join("documented.bin"), descriptors.encode_to_vec())?;
    // Positions and comments serve the generated code only; without them the set changes with the interface alone.
    let mut interface = descriptors.clone();
    interface.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(out.join("retrybudget.v1.bin"), interface.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
