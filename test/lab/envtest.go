// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	envtestTool = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1"
	// envtestIndex lists the programs that can be downloaded. The tool reads it first (remote.DefaultIndexURL).
	envtestIndex = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"

	envtestReachTimeout   = 2 * time.Second
	envtestCompileTimeout = 3 * time.Minute
	envtestProbeTimeout   = 15 * time.Second
	envtestFetchTimeout   = 10 * time.Minute

	// refusalAge is the time until a failed download is tried again, so that the many test binaries of one run try once.
	refusalAge = 15 * time.Minute
)

// An envtestDownload fetches the envtest programs with setup-envtest.
type envtestDownload struct {
	goTool  string
	version string // such as "1.36.x"
	index   string
}

// minorOf turns v1.36.3 into 1.36.x: envtest binaries are not published for each patch.
func minorOf(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return strings.TrimPrefix(version, "v")
	}
	return parts[0] + "." + parts[1] + ".x"
}

// fetch compiles the tool, reads the index with a short timeout, and then downloads with a longer one. Before that, it
// asks for the index, because compiling the tool takes seconds and a machine without a network does not need it.
func (d envtestDownload) fetch(ctx context.Context, into string) (string, error) {
	if err := answers(ctx, d.index); err != nil {
		return "", err
	}
	if _, err := d.run(ctx, envtestCompileTimeout, "version"); err != nil {
		return "", err
	}
	if _, err := d.run(ctx, envtestProbeTimeout, "list", d.version, "--bin-dir", into); err != nil {
		return "", err
	}
	path, err := d.run(ctx, envtestFetchTimeout, "use", d.version, "-p", "path", "--bin-dir", into)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(path), nil
}

// answers returns an error if a URL cannot be read, or does not answer soon.
func answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, envtestReachTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{}).Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", request.URL.Host, response.Status)
	}
	return nil
}

func (d envtestDownload) run(ctx context.Context, timeout time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := groupCommand(ctx, d.goTool, append([]string{"run", envtestTool}, args...)...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GO111MODULE=on", "GOFLAGS=")
	cmd.Dir = os.TempDir()
	output, err := runGroup(cmd)
	if err != nil {
		lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
		return "", fmt.Errorf("setup-envtest %s: %w: %s", args[0], err, lines[0])
	}
	return string(output), nil
}

// canDownload reports whether a download has one of names and has not failed lately.
func (s *store) canDownload(names []string) bool {
	if s.download == nil || !slices.ContainsFunc(names, isEnvtestProgram) {
		return false
	}
	info, err := os.Stat(s.refusalNote())
	return err != nil || time.Since(info.ModTime()) > refusalAge
}

// tryDownload reports whether the envtest programs are there now. If not, they can be built, so it only reports why.
func (s *store) tryDownload(ctx context.Context, out *reporter) bool {
	into := filepath.Join(s.dir, "envtest")
	err := out.during("downloading etcd, kube-apiserver and kubectl with setup-envtest", func() error {
		// Without its note, the folder may hold an incomplete download.
		if err := os.RemoveAll(into); err != nil {
			return err
		}
		dir, err := s.download(ctx, into)
		if err != nil {
			return err
		}
		if _, missing := lookIn(dir, envtestPrograms()); len(missing) > 0 {
			return fmt.Errorf("it lacks %s", strings.Join(missing, ", "))
		}
		return writeFileAtomic(s.downloadNote(), []byte(dir+"\n"), 0o644)
	})
	if err == nil || ctx.Err() != nil {
		return err == nil
	}
	out.say("download not possible (%v); building instead", err)
	if err := os.WriteFile(s.refusalNote(), []byte(err.Error()+"\n"), 0o644); err != nil {
		out.say("cannot remember that: %v", err)
	}
	return false
}

func (s *store) refusalNote() string { return filepath.Join(s.dir, "envtest-refused") }

// writeFileAtomic replaces a file in one step.
func writeFileAtomic(path string, content []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-"+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	if err := errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
