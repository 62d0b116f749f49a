// The same images as `make image`, for CI that has buildx: docker buildx bake cpu
// Defaults are those of docker/versions.env and toolkit/version.py; a test compares them.
variable "BASE_IMAGE" { default = "debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716" }
variable "TORCH_CPU_INDEX" { default = "https://download.pytorch.org/whl/cpu" }
variable "TORCH_VERSION" { default = "2.13.0" }
variable "NEURON_TORCH_VERSION" { default = "2.9.1" }
variable "VERSION" { default = "0.1.0" }
variable "REVISION" { default = "" }
variable "REPOSITORY" { default = "muster" }

group "default" { targets = ["base", "cpu", "cpu-devel"] }

target "common" {
  context    = "."
  dockerfile = "docker/Dockerfile"
  args = {
    BASE_IMAGE = BASE_IMAGE
    VERSION    = VERSION
    REVISION   = REVISION
  }
}

target "base" {
  inherits = ["common"]
  target   = "base"
  tags     = [join("-", compact(["${REPOSITORY}:${VERSION}", "base", "py311", "bookworm", REVISION]))]
}

target "cpu" {
  inherits = ["common"]
  target   = "cpu"
  args     = { TORCH_CPU_INDEX = TORCH_CPU_INDEX }
  tags     = [join("-", compact(["${REPOSITORY}:${VERSION}", "torch${TORCH_VERSION}", "cpu", "py311", "bookworm", REVISION]))]
}

target "cpu-devel" {
  inherits = ["cpu"]
  target   = "cpu-devel"
  tags     = [join("-", compact(["${REPOSITORY}:${VERSION}", "torch${TORCH_VERSION}", "cpu-devel", "py311", "bookworm", REVISION]))]
}

target "cuda-efa" {
  inherits = ["common"]
  target   = "cuda-efa"
  tags     = [join("-", compact(["${REPOSITORY}:${VERSION}", "torch${TORCH_VERSION}", "cuda-efa", "py311", "bookworm", REVISION]))]
}

target "neuron" {
  inherits = ["common"]
  target   = "neuron"
  tags     = [join("-", compact(["${REPOSITORY}:${VERSION}", "torch${NEURON_TORCH_VERSION}", "neuron", "py311", "bookworm", REVISION]))]
}
