//! Flags that name a model, its inputs and the cluster, and say how it is loaded, split and run.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};

use convoke::{BlockWidth, DeviceId};

use crate::text::failure::Failure;
use crate::text::values::{
    Bound, Pin, parse_bound, parse_duration, parse_named, parse_pin, parse_size,
};

/// Flags that give the workers of a command their devices.
#[derive(Debug, Clone, Default, Args)]
pub struct DeviceArgs {
    /// Devices of the workers that this command starts, given out in turns: cpu, cuda:0, an NVIDIA GPU, or simgpu, a
    /// simulated one [default: cpu]
    #[arg(
        long,
        value_name = "DEVICE,…",
        env = "CONVOKE_DEVICE",
        value_delimiter = ','
    )]
    pub device: Vec<DeviceId>,
    /// Memory of each device that is not a CPU [default: as --memory]
    #[arg(long, value_name = "SIZE", env = "CONVOKE_DEVICE_MEMORY", value_parser = parse_size)]
    pub device_memory: Option<u64>,
}

/// Flags that choose the cluster and the workers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Start N workers inside this process, and use all of them [default without --connect: 1]
    #[arg(long, value_name = "N", env = "CONVOKE_LOCAL", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub local: Option<u32>,
    /// Use the cluster of the coordinator at this address
    #[arg(long, value_name = "HOST:PORT", env = "CONVOKE_CONNECT")]
    pub connect: Option<String>,
    /// File with the client token that lets this command in
    #[arg(long, value_name = "FILE", env = "CONVOKE_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Use exactly N workers, each with at least one node; wait up to 30 s for them
    /// [default: as many as --local, else the fewest that fit, more only where that is faster]
    #[arg(long, value_name = "N", env = "CONVOKE_WORKERS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,
    /// Compute threads of each worker in this process [default: an equal share of the cores]
    #[arg(long, value_name = "T", env = "CONVOKE_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Memory of each worker in this process [default: an equal share of 80 % of the machine's or the container's]
    #[arg(long, value_name = "SIZE", env = "CONVOKE_MEMORY", value_parser = parse_size)]
    pub memory: Option<u64>,
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Whether --local and --connect were given on the command line, not by a variable.
    #[arg(skip)]
    explicit: (bool, bool),
}

impl ClusterArgs {
    /// Records which of --local and --connect were given as flags, not as variables.
    pub fn note_sources(&mut self, m: &ArgMatches) {
        let typed = |id| m.value_source(id) == Some(ValueSource::CommandLine);
        self.explicit = (typed("local"), typed("connect"));
    }

    /// Keeps one of --local and --connect, where a flag overrides a variable, and checks the flags of the cluster.
    pub fn settle(&mut self) -> Result<(), Failure> {
        match (self.local, &self.connect, self.explicit) {
            (Some(_), Some(_), (true, false)) => self.connect = None,
            (Some(_), Some(_), (false, true)) => self.local = None,
            (Some(_), Some(_), _) => {
                let msg = "--local N and --connect HOST:PORT exclude each other: give one";
                return Err(Failure::Usage(msg.into()));
            }
            _ => {}
        }
        if let (Some(local), Some(workers)) = (self.local, self.workers)
            && workers > local
        {
            let msg = format!("--workers {workers} needs --local {workers} or more, not {local}");
            return Err(Failure::Usage(msg));
        }
        if self.connect.is_some() && self.token_file.is_none() {
            let msg = "--connect needs --token-file FILE: a file with a client token, \
                       as `convoke token create --role client` prints it";
            return Err(Failure::Usage(msg.into()));
        }
        Ok(())
    }
}

/// Flags that name the model, and say how it is split.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct LoadArgs {
    /// The ONNX model
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// A safetensors file with weights that the model has no data for, found by name; may be repeated, the variable
    /// holds one
    #[arg(long, value_name = "FILE.safetensors", env = "CONVOKE_WEIGHTS")]
    pub weights: Vec<PathBuf>,
    /// Folder that the workers see too (as their own --artifact-root): they read weights beneath it themselves
    #[arg(long, value_name = "DIR", env = "CONVOKE_ARTIFACT_ROOT")]
    pub artifact_root: Option<PathBuf>,
    /// Largest size of a dynamic axis, as seq=512 or seq=1..512; several with commas between, or repeated
    /// [default: twice what the inputs need, or less where that does not fit]
    #[arg(long, value_name = "AXIS=SIZE", env = "CONVOKE_DIM", value_delimiter = ',', value_parser = parse_bound)]
    pub dim: Vec<Bound>,
    /// Run the nodes whose names match (* matches anything) on these devices: w0, w*, cpu, w0/cpu:0; if these are
    /// several, the plan chooses; may be repeated, the first match counts; the variable holds one
    #[arg(long, value_name = "PATTERN=DEVICES", env = "CONVOKE_PIN", value_parser = parse_pin)]
    pub pin: Vec<Pin>,
    /// What the optimiser may do to values; the bits of results depend on it, and not on the split
    #[arg(long, value_name = "NAME", env = "CONVOKE_NUMERICS", value_enum, default_value_t = NumericsName::Standard)]
    pub numerics: NumericsName,
    /// Let devices of different numerics profiles compute the model together; the last bits of the results then depend
    /// on which device computes what
    #[arg(long, env = "CONVOKE_MIX_PROFILES", value_parser = FalseyValueParser::new())]
    pub mix_profiles: bool,
    #[command(flatten)]
    pub blocks: BlockArgs,
}

/// Options for what a model's file leaves open.
#[derive(Debug, Args)]
pub struct BlockArgs {
    /// Channels of a block in a model that ONNX Runtime's optimizer wrote at level all, where the file leaves it open:
    /// 16 if it was written on a processor with AVX-512 or of ARM, 8 on another one; the wrong one gives wrong numbers
    #[arg(long, value_name = "CHANNELS", env = "CONVOKE_NCHWC_BLOCK", value_enum)]
    pub nchwc_block: Option<BlockChannels>,
}

/// The channels of a block of ONNX Runtime's blocked layout.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BlockChannels {
    #[value(name = "8")]
    Eight,
    #[value(name = "16")]
    Sixteen,
}

impl From<BlockChannels> for BlockWidth {
    fn from(channels: BlockChannels) -> BlockWidth {
        match channels {
            BlockChannels::Eight => BlockWidth::Eight,
            BlockChannels::Sixteen => BlockWidth::Sixteen,
        }
    }
}

/// Flags that name the model and its inputs, and say how it is split.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub inputs: InputArgs,
    /// Steps that run at once, each with memory of its own
    #[arg(long, value_name = "K", env = "CONVOKE_IN_FLIGHT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub in_flight: u32,
}

/// The files that hold a model's inputs.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// Inputs by name, as numpy.savez writes them
    #[arg(long, value_name = "FILE.npz", env = "CONVOKE_INPUTS")]
    pub inputs: Option<PathBuf>,
    /// One input, as numpy.save writes it; may be repeated, the variable holds one
    #[arg(long, value_name = "NAME=FILE.npy", env = "CONVOKE_INPUT", value_parser = parse_named)]
    pub input: Vec<(String, PathBuf)>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Write the outputs here, as numpy.load reads them; dtypes that numpy lacks become wider ones, and a note says so
    #[arg(long, value_name = "FILE.npz", env = "CONVOKE_OUTPUTS")]
    pub outputs: Option<PathBuf>,
    /// Run on one worker too and compare the bits; compare with the arrays expected/NAME of the inputs
    #[arg(long, env = "CONVOKE_VERIFY", value_parser = FalseyValueParser::new())]
    pub verify: bool,
    /// Run K steps, and report the median and the 99th percentile of their times
    #[arg(long, value_name = "K", env = "CONVOKE_STEPS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub steps: u64,
    /// Give up loading the model, or a step, after this time (500ms, 30s, 5m), and stop it on all workers
    #[arg(long, value_name = "TIME", env = "CONVOKE_TIMEOUT", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Where the model does not fit the memory that is free, wait until memory is released, behind the loads that wait
    /// already, at most this time (30s, 5m; alone: 10m, at most 1h) [default: fail]
    #[arg(long, value_name = "TIME", env = "CONVOKE_WAIT", num_args = 0..=1, default_missing_value = "10m", require_equals = true, value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// When a worker is lost while the model loads or a step runs: do that again, twice at most, or fail
    #[arg(long, value_enum, value_name = "WHEN", env = "CONVOKE_RETRY", default_value_t = RetryWhen::On)]
    pub retry: RetryWhen,
    /// Where a node fails, write the outputs that do not depend on it, and say why the others failed; the exit code is
    /// 1 then
    #[arg(long, env = "CONVOKE_PARTIAL", value_parser = FalseyValueParser::new())]
    pub partial: bool,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// What the optimiser may do to values, as `--numerics` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NumericsName {
    /// Nothing: each node is computed as the file has it
    Exact,
    /// Fold batch normalisation into weights, and compute GELU and layer norms that are written out as one op
    Standard,
    /// Also multiply whole numbers where the file allows it: MatMulNBits with accuracy_level 4. Large products are
    /// faster, and less accurate
    Int8,
}

impl From<NumericsName> for convoke::Numerics {
    fn from(name: NumericsName) -> Self {
        match name {
            NumericsName::Exact => convoke::Numerics::Exact,
            NumericsName::Standard => convoke::Numerics::Standard,
            NumericsName::Int8 => convoke::Numerics::Int8,
        }
    }
}

/// Whether a load or step is run again after the loss of a worker, as `--retry` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RetryWhen {
    /// Load or run again
    On,
    /// Fail
    Off,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    /// The text to go on from
    #[arg(long, value_name = "TEXT", env = "CONVOKE_PROMPT")]
    pub prompt: Option<String>,
    /// File with the text to go on from, or - for stdin
    #[arg(long, value_name = "FILE", env = "CONVOKE_PROMPT_FILE")]
    pub prompt_file: Option<PathBuf>,
    /// The model's tokenizer, as Hugging Face's tokenizers writes it [default: tokenizer.json beside the model]
    #[arg(long, value_name = "FILE.json", env = "CONVOKE_TOKENIZER")]
    pub tokenizer: Option<PathBuf>,
    /// The most tokens to generate
    #[arg(
        long,
        value_name = "N",
        env = "CONVOKE_MAX_TOKENS",
        default_value_t = 128
    )]
    pub max_tokens: u32,
    /// The temperature of the draw: higher values even out the probabilities; 0 takes the most probable token each time
    #[arg(
        long,
        value_name = "T",
        env = "CONVOKE_TEMPERATURE",
        default_value_t = 0.,
        allow_negative_numbers = true
    )]
    pub temperature: f32,
    /// With --temperature above 0: draw from the K most probable tokens; 0 for all
    #[arg(long, value_name = "K", env = "CONVOKE_TOP_K", default_value_t = 0)]
    pub top_k: u32,
    /// With --temperature above 0: draw from the most probable tokens that together reach this probability; 1 for all
    #[arg(
        long,
        value_name = "P",
        env = "CONVOKE_TOP_P",
        default_value_t = 1.,
        allow_negative_numbers = true
    )]
    pub top_p: f32,
    /// With --temperature above 0: the seed of the draws; the same seed gives the same text
    #[arg(long, value_name = "S", env = "CONVOKE_SEED", default_value_t = 0)]
    pub seed: u64,
    /// Stop at the token with this text, or where there is none, with this id, besides those that
    /// generation_config.json, genai_config.json or config.json beside the model names; may be repeated, the variable
    /// holds one
    #[arg(long, value_name = "TOKEN", env = "CONVOKE_STOP")]
    pub stop: Vec<String>,
    /// When a worker is lost: compute the text so far again on the others and go on, or fail
    #[arg(long, value_enum, value_name = "WHEN", env = "CONVOKE_RETRY", default_value_t = RetryWhen::On)]
    pub retry: RetryWhen,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Write the model once more, with the plan as ONNX's annotations of devices, which runs of that file follow
    #[arg(long, value_name = "FILE.onnx", env = "CONVOKE_SAVE_ANNOTATED")]
    pub save_annotated: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The ONNX model
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// A safetensors file with weights that the model has no data for, found by name; may be repeated, the variable
    /// holds one
    #[arg(long, value_name = "FILE.safetensors", env = "CONVOKE_WEIGHTS")]
    pub weights: Vec<PathBuf>,
    #[command(flatten)]
    pub inputs: InputArgs,
    /// Size of a dynamic axis for which the figures are given, as seq=512; several with commas between, or repeated
    /// [default: that of the inputs, else 1]
    #[arg(long, value_name = "AXIS=SIZE", env = "CONVOKE_DIM", value_delimiter = ',', value_parser = parse_bound)]
    pub dim: Vec<Bound>,
    #[command(flatten)]
    pub blocks: BlockArgs,
    /// Largest number of workers for which the memory is given
    #[arg(long, value_name = "N", env = "CONVOKE_WORKERS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
}
