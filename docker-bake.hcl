// The same images as `make image`, for CI that has buildx: REVISION=$(git rev-parse --short=12 HEAD) docker buildx bake cpu
// Defaults are those of docker/versions.env and toolkit/version.py; a test compares them.
variable "PYTHON" { default = "3.11" }
variable "TORCH_VERSION" { default = "2.13.0" }
variable "TORCH_CPU_INDEX" { default = "https://download.pytorch.org/whl/cpu" }
variable "NEURON_TORCH_VERSION" { default = "2.9.1" }
variable "VERSION" { default = "0.1.0" }
// the commit. Without it an image has no tag: one without a commit would move
variable "REVISION" { default = "" }
// a day, such as 20261123: Debian's packages of that day
variable "REFRESH" { default = "" }
variable "SSH" { default = "1" }
variable "REPOSITORY" { default = "muster" }
variable "BASE_IMAGE" { default = "" }
variable "BASES" {
  default = {
    "3.10" = ["bookworm", "python:3.10-slim-bookworm@sha256:68d914ec641a0b69267ce65184d000a2bc3a9ee2590ab702b82250ab2385735a"]
    "3.11" = ["bookworm", "debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716"]
    "3.12" = ["bookworm", "python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254"]
    "3.13" = ["trixie", "debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f"]
    "3.14" = ["trixie", "python:3.14-slim-trixie@sha256:51dafde81dbdb6ebde285137a295cf18a47ca95234fe388a343719cb97305b3d"]
  }
}

// for what is not as usual the characters that `make image` ends its tag with
function "variant" {
  params = [given]
  result = length(given) == 0 ? "" : "v${substr(sha256("['${join("', '", given)}']"), 0, 6)}"
}

function "tag" {
  params = [framework, device]
  result = REVISION == "" ? [] : [join("-", compact([
    "${REPOSITORY}:${VERSION}", framework, device, "py${replace(PYTHON, ".", "")}", BASES[PYTHON][0], REVISION,
    REFRESH == "" ? "" : "r${REFRESH}",
    variant(compact([SSH == "1" ? "" : "SSH=${SSH}", BASE_IMAGE == BASES[PYTHON][1] ? "" : BASE_IMAGE])),
  ]))]
}

group "default" { targets = ["base", "cpu", "cpu-devel"] }

target "common" {
  context    = "."
  dockerfile = "docker/Dockerfile"
  args = {
    BASE_IMAGE = BASE_IMAGE == "" ? BASES[PYTHON][1] : BASE_IMAGE
    SUITE      = BASES[PYTHON][0]
    PYTHON     = PYTHON
    REFRESH    = REFRESH
    SSH        = SSH
    VERSION    = VERSION
    REVISION   = REVISION
  }
}

target "base" {
  inherits = ["common"]
  target   = "base"
  tags     = tag("", "base")
}

target "cpu" {
  inherits = ["common"]
  target   = "cpu"
  args     = { TORCH_VERSION = TORCH_VERSION, TORCH_CPU_INDEX = TORCH_CPU_INDEX }
  tags     = tag("torch${TORCH_VERSION}", "cpu")
}

target "cpu-devel" {
  inherits = ["cpu"]
  target   = "cpu-devel"
  tags     = tag("torch${TORCH_VERSION}", "cpu-devel")
}

target "cuda-efa" {
  inherits = ["common"]
  target   = "cuda-efa"
  tags     = tag("torch${TORCH_VERSION}", "cuda-efa")
}

target "neuron" {
  inherits = ["common"]
  target   = "neuron"
  tags     = tag("torch${NEURON_TORCH_VERSION}", "neuron")
}
