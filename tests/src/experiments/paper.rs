//! `lab paper`: repeats the paper's experiments. The code of `landfall simulate` computes Tables 1
//! and 2. Figures 2 and 3 are measured with real agents in the lab.
//!
//! With the paper's layout, the lab runs the base cell and all cells that differ from it in one
//! factor. With other layouts, the lab runs only the base cell. Each cell runs with every strategy
//! and seed (`tests/experiments.toml`). A cell whose timing is void runs once more, and is printed
//! as void if its timing is void again. Finished cells are stored, so that an interrupted run can
//! continue. Each cell is compared with a simulation that uses the same survey.

mod figures_and_page;
pub mod lab_cells;
mod run;
mod simulated_cells;
mod tables;

pub use self::run::{PaperArgs, paper};
