# A formula for Homebrew on Linux. To be filled in at a release, and put into a tap as Formula/paceway.rb: VERSION, and the two
# hashes, which SHA256SUMS of the release has.
class Paceway < Formula
  desc "HTTP gateway that paces calls to APIs that throttle you"
  homepage "https://github.com/paceway/paceway"
  version "VERSION"
  license "Apache-2.0"
  depends_on :linux

  on_arm do
    url "https://github.com/paceway/paceway/releases/download/v#{version}/paceway-#{version}-aarch64-unknown-linux-musl.tar.gz"
    sha256 "SHA256_AARCH64"
  end
  on_intel do
    url "https://github.com/paceway/paceway/releases/download/v#{version}/paceway-#{version}-x86_64-unknown-linux-musl.tar.gz"
    sha256 "SHA256_X86_64"
  end

  def install
    bin.install "paceway"
    generate_completions_from_executable(bin/"paceway", "completions")
    (man1/"paceway.1").write Utils.safe_popen_read(bin/"paceway", "man")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/paceway --version")
    (testpath/"paceway.yaml").write <<~YAML
      upstream: https://api.vendor.example
      limiters: { account: 5/s }
      routes: [{ suffix: "*", limiters: [account] }]
    YAML
    system bin/"paceway", "check", "paceway.yaml"
  end
end
