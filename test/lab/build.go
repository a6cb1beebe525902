// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// outputLimit is the maximum number of bytes that are shown from the output of a failed command. They are taken from
// the end, which contains the cause.
const outputLimit = 16 << 10

// testSuffix is the suffix of the names of programs that contain the tests of a package.
const testSuffix = ".test"

const buildHint = "the build needs a Go module proxy (see `go env GOPROXY`), about 4 GB of disk and 3 GB of memory; " +
	"what is built already is kept, so run it again, or point " + envAssets + " at ready-made binaries"

// build builds one program. It first builds the program under a temporary name and then renames it, so that a binary
// with the final name is always complete.
func (s *store) build(ctx context.Context, p program) error {
	src, err := s.writeModule(p.module)
	if err != nil {
		return fmt.Errorf("build %s: %w", p.name, err)
	}
	tmp := filepath.Join(s.dir, fmt.Sprintf(".tmp-%s-%d", p.name, os.Getpid()))
	defer os.Remove(tmp)
	args := []string{"build"}
	if strings.HasSuffix(p.name, testSuffix) {
		args = []string{"test", "-c", "-vet=off"}
	}
	args = append(args, "-mod=readonly", "-trimpath", "-tags", p.module.tags, "-ldflags", p.module.ldflags, "-o", tmp, p.pkg)
	cmd := groupCommand(ctx, s.goTool, args...)
	cmd.Dir = src
	// A compiler that collects garbage only above 1 GiB needs 18 % less processor time (docs/lab/demo.md).
	cgo := "0"
	if p.module.cgo {
		cgo = "1"
	}
	cmd.Env = append(os.Environ(), "GOGC=off", "GOMEMLIMIT=1GiB", "CGO_ENABLED="+cgo, "GOWORK=off", "GO111MODULE=on",
		"GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH, "PWD="+src)
	output, err := runGroup(cmd)
	if ctx.Err() != nil {
		return fmt.Errorf("build %s: interrupted: %w", p.name, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("build %s: go build: %w\n%s\nhint: %s", p.name, err, bytes.TrimSpace(output), buildHint)
	}
	if err := commit(tmp, filepath.Join(s.dir, p.name)); err != nil {
		return fmt.Errorf("build %s: %w", p.name, err)
	}
	return nil
}

// writeModule writes the go.mod and go.sum files, and the module's other files, for a build.
func (s *store) writeModule(m module) (string, error) {
	dir := filepath.Join(s.dir, "src", m.name)
	files := map[string][]byte{"go.mod": m.mod, "go.sum": m.sum}
	maps.Copy(files, m.files)
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// commit durably renames a complete file to its final name. After a power failure, the file either has its complete
// content or does not exist.
func commit(tmp, final string) error {
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := syncPath(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return err
	}
	return syncPath(filepath.Dir(final))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// tail keeps the last bytes that were written to it.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - outputLimit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}
