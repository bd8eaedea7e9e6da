//! Let a configuration and the device choose the strategy, and see why each candidate won or lost.

use anyhow::{Result, ensure};
use memreg::{Loader, OpenError};

const CONFIG: &str = r#"
[device]
profile = "no-fast-registration"   # a device without REG_MR

[strategy]
name = "auto"                      # the first in `order` that works
order = ["frwr", "fmr"]

[queues]
credits = 64

[memory]
max_payload = "256KiB"
"#;

fn main() -> Result<()> {
    // Defaults < text or file < environment < --set. Every problem of every source comes at once.
    let loaded = Loader::new().text("example", CONFIG).load()?;
    for row in loaded.origins.iter().filter(|row| row.origin != "default") {
        println!("{} = {}   [{}]", row.key, row.value, row.origin);
    }

    // The strategy is chosen, opened and sized for this device.
    let opened = memreg::open(&loaded.settings)?;
    println!("\nchosen: {}", opened.transport.strategy_name());
    for c in &opened.candidates {
        println!("  {:8} {}", c.name, c.reason);
    }
    let limits = opened.transport.limits();
    println!("\nsizes: {} credits, {} send-queue slots", limits.credits, limits.max_send_wr);
    ensure!(opened.transport.strategy_name() == "fmr" && limits.credits == 64);

    // A strategy that is named works or is an error; another is never taken in its place.
    let named = Loader::new().text("example", CONFIG).set("strategy.name=frwr").load()?;
    match memreg::open(&named.settings) {
        Ok(_) => anyhow::bail!("frwr was opened on a device without REG_MR"),
        Err(e @ OpenError::Select(_)) => println!("\nnamed: {e}"),
        Err(e) => return Err(e.into()),
    }

    // Nor is anything in a configuration guessed.
    let wrong = "[queues]\ncredits = \"many\"\n[memory]\nmax_paylod = 1\n";
    match Loader::new().text("wrong", wrong).load() {
        Ok(_) => anyhow::bail!("a wrong configuration was accepted"),
        Err(e) => println!("\na wrong configuration:\n{e}"),
    }
    Ok(())
}
