// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// compile builds the main package in a source folder for a platform. The result depends only on the sources, the
// version and the Go version. It does not depend on the folder or on the state of the repository.
func (r release) compile(ctx context.Context, platform, source, output string) error {
	return r.compileIn(ctx, r.root, platform, source, output)
}

// compileIn is like compile, but builds a package of the module in dir.
func (r release) compileIn(ctx context.Context, dir, platform, source, output string) error {
	goos, goarch, found := strings.Cut(platform, "/")
	if !found {
		return fmt.Errorf("platform %q is not of the form os/architecture", platform)
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	say("compiling %s for %s", filepath.Base(output), platform)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-ldflags", "-s -w -X main.version="+r.version, "-o", output, source)
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s for %s: %w\n%s", source, platform, err, out)
	}
	return nil
}

// machines maps the Linux architectures that images support from their Go names to their ELF names.
func machines() map[string]elf.Machine {
	return map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
}

// checkPlatform returns an error unless a binary runs on an image's platform without a dynamic linker. The image
// contains no libraries.
func checkPlatform(path, platform string) error {
	program, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read program %s: %w", path, err)
	}
	defer program.Close()
	goos, goarch, _ := strings.Cut(platform, "/")
	if want, known := machines()[goarch]; goos != "linux" || !known || program.Machine != want {
		return fmt.Errorf("program %s is for %s, and not for %s: PLATFORMS may have linux/amd64 and linux/arm64", path, program.Machine, platform)
	}
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read program %s: %w", path, err)
	}
	if len(libraries) > 0 {
		return fmt.Errorf("program %s needs the libraries %v, which the image does not have: build it with CGO_ENABLED=0", path, libraries)
	}
	return nil
}
