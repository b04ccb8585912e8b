//! shotover with the transforms that its crate has.

fn main() {
    shotover::runner::Shotover::new().run_block();
}
