//! The shell's registers (BAR 2): resets, which queues a function has and how packets are spread
//! over them, and the ports.

use crate::cmac::Cmac;
use crate::hash::{self, DEFAULT_KEY, Key};

/// BAR 2, bytes.
pub const BAR_LEN: u64 = 0x40_0000;
/// Functions that the shell can have.
pub const FUNCTIONS_MAX: usize = 4;
/// Ports that it can have.
pub const PORTS_MAX: usize = 2;

const BUILD: u32 = 0x00;
/// 1 January, as the shell has it when nobody said another time.
const BUILT: u32 = 0x0101_0000;
const SYSTEM_RESET: u32 = 0x04;
const SYSTEM_STATUS: u32 = 0x08;
const SHELL_RESET: u32 = 0x0C;
const SHELL_STATUS: u32 = 0x10;
const USER_STATUS: u32 = 0x18;
const FUNCTIONS: u32 = 0x1000;
const FUNCTION_LEN: u32 = 0x1000;
const PORTS: u32 = 0x8000;
const PORT_LEN: u32 = 0x4000;
const TABLE: u32 = 0x400;
const KEY: u32 = 0x600;
/// What the shell says where nothing is.
const NOTHING: u32 = 0xDEAD_BEEF;

/// Of a function (`qdma_subsystem_function_register.sv`).
#[derive(Clone, Copy, Debug)]
struct Function {
    queue_base: u16,
    queue_count: u16,
    table: [u16; 128],
    key: Key,
}

impl Default for Function {
    fn default() -> Self {
        Self {
            queue_base: 0,
            queue_count: 0,
            table: [0; 128],
            key: DEFAULT_KEY,
        }
    }
}

impl Function {
    fn read(&self, offset: u32) -> u32 {
        match offset {
            0 => u32::from(self.queue_base) << 16 | u32::from(self.queue_count),
            TABLE..KEY => self.table[((offset - TABLE) / 4) as usize].into(),
            KEY.. if (offset - KEY) / 4 < self.key.len() as u32 => {
                self.key[((offset - KEY) / 4) as usize]
            }
            _ => NOTHING,
        }
    }

    fn write(&mut self, offset: u32, value: u32) {
        match offset {
            0 => {
                self.queue_base = (value >> 16) as u16;
                self.queue_count = value as u16;
            }
            TABLE..KEY => self.table[((offset - TABLE) / 4) as usize] = value as u16,
            KEY.. if (offset - KEY) / 4 < self.key.len() as u32 => {
                self.key[((offset - KEY) / 4) as usize] = value;
            }
            _ => {}
        }
    }
}

/// The shell.
pub struct Shell {
    functions: [Function; FUNCTIONS_MAX],
    /// One for each function of the card, as its bitstream is built: function N is on port N.
    pub ports: Vec<Cmac>,
}

impl Shell {
    pub fn new(ports: usize) -> Self {
        Self {
            functions: [Function::default(); FUNCTIONS_MAX],
            ports: (0..ports.min(PORTS_MAX)).map(|_| Cmac::new()).collect(),
        }
    }

    /// The queue, of all of the card's, that a function's packet goes to.
    pub fn queue_for(&self, function: usize, packet: &[u8]) -> Option<usize> {
        let function = self.functions.get(function)?;
        let entry = hash::hash(&function.key, packet) & 0x7F;
        let queue = function.table[entry as usize].wrapping_add(function.queue_base);
        Some(usize::from(queue & 0x7FF))
    }

    /// Whether a queue is one of the function's: what others send for it is not let through.
    pub fn owns(&self, function: usize, queue: usize) -> bool {
        self.functions.get(function).is_some_and(|function| {
            let base = usize::from(function.queue_base);
            (base..base + usize::from(function.queue_count)).contains(&queue)
        })
    }

    /// Function-level reset.
    pub fn reset_function(&mut self, function: usize) {
        if let Some(function) = self.functions.get_mut(function) {
            *function = Function::default();
        }
    }

    fn port(&mut self, offset: u32) -> Option<(&mut Cmac, u32)> {
        let offset = offset.checked_sub(PORTS)?;
        let port = self.ports.get_mut((offset / PORT_LEN) as usize)?;
        Some((port, offset % PORT_LEN))
    }

    fn function(&mut self, offset: u32) -> Option<(&mut Function, u32)> {
        let offset = offset.checked_sub(FUNCTIONS)?;
        let function = self.functions.get_mut((offset / FUNCTION_LEN) as usize)?;
        Some((function, offset % FUNCTION_LEN))
    }

    pub fn read(&mut self, offset: u32) -> u32 {
        match offset {
            BUILD => BUILT,
            SYSTEM_STATUS => 1,
            // All that was reset is ready again.
            SHELL_STATUS | USER_STATUS => u32::MAX,
            _ => {
                if let Some((function, offset)) = self.function(offset) {
                    return function.read(offset);
                }
                self.port(offset)
                    .map_or(NOTHING, |(port, offset)| port.read(offset))
            }
        }
    }

    pub fn write(&mut self, offset: u32, value: u32) {
        match offset {
            SYSTEM_RESET if value & 1 == 1 => {
                self.functions = [Function::default(); FUNCTIONS_MAX];
                self.ports.iter_mut().for_each(Cmac::reset);
            }
            // One bit for each of a port's two parts, the CMAC first.
            SHELL_RESET => {
                for (at, port) in self.ports.iter_mut().enumerate() {
                    if value >> (4 + 4 * at) & 1 == 1 {
                        port.reset();
                    }
                }
            }
            0..FUNCTIONS => {}
            _ => {
                if let Some((function, offset)) = self.function(offset) {
                    function.write(offset, value);
                } else if let Some((port, offset)) = self.port(offset) {
                    port.write(offset, value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_spreads_over_a_functions_own_queues() {
        let mut shell = Shell::new(2);
        let at = FUNCTIONS + FUNCTION_LEN;
        shell.write(at, 64 << 16 | 4);
        for entry in 0..128 {
            shell.write(at + TABLE + entry * 4, entry % 4);
        }
        assert_eq!(shell.read(at), 64 << 16 | 4);
        assert_eq!(shell.read(at + TABLE + 4 * 5), 1);
        let queue = shell.queue_for(1, &[0; 60]).expect("a function");
        assert!((64..68).contains(&queue) && shell.owns(1, queue) && !shell.owns(0, queue));
        shell.reset_function(1);
        assert!(!shell.owns(1, queue));
    }

    #[test]
    fn the_key_is_the_shells_until_it_is_written() {
        let mut shell = Shell::new(1);
        assert_eq!(shell.read(FUNCTIONS + KEY), 0xD6E3_1417);
        assert_eq!(shell.read(FUNCTIONS + KEY + 36), 0x7C9C_37DE);
        assert_eq!(shell.read(FUNCTIONS + KEY + 40), NOTHING);
        shell.write(FUNCTIONS + KEY, 7);
        assert_eq!(shell.read(FUNCTIONS + KEY), 7);
    }

    #[test]
    fn a_port_that_is_not_built_in_reads_as_nothing() {
        let mut shell = Shell::new(1);
        assert_eq!(shell.read(PORTS + 0x24), 0x301);
        assert_eq!(shell.read(PORTS + PORT_LEN + 0x24), NOTHING);
        shell.write(PORTS + PORT_LEN, 1);
        shell.write(u32::MAX, 1);
        assert_eq!(shell.read(u32::MAX), NOTHING);
    }
}
