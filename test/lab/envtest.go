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
	// envtestIndex is the list of programs that can be downloaded. setup-envtest reads it first
	// (remote.DefaultIndexURL).
	envtestIndex = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"

	envtestReachTimeout   = 2 * time.Second
	envtestCompileTimeout = 3 * time.Minute
	envtestProbeTimeout   = 15 * time.Second
	envtestFetchTimeout   = 10 * time.Minute

	// refusalAge is how long to wait before a failed download is tried again, so that the many test binaries of a
	// test run try only once.
	refusalAge = 15 * time.Minute
)

type envtestDownload struct {
	goTool  string
	version string // for example "1.36.x"
	index   string
}

// minorOf turns v1.36.3 into 1.36.x, because envtest binaries are not published for every patch version.
func minorOf(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return strings.TrimPrefix(version, "v")
	}
	return parts[0] + "." + parts[1] + ".x"
}

// fetch first checks that the index can be read, because compiling setup-envtest takes seconds and is useless on a
// machine without network access. It then compiles setup-envtest, reads the index with a short timeout, and downloads
// the programs with a longer timeout.
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

// answers returns an error if a URL cannot be read within envtestReachTimeout.
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

// canDownload reports whether at least one of the named programs can be downloaded and no download has failed
// recently.
func (s *store) canDownload(names []string) bool {
	if s.download == nil || !slices.ContainsFunc(names, isEnvtestProgram) {
		return false
	}
	info, err := os.Stat(s.refusalNote())
	return err != nil || time.Since(info.ModTime()) > refusalAge
}

// tryDownload tries to download the envtest programs, and reports whether they are available now. If the download
// fails, it only reports the reason, because the programs can still be built.
func (s *store) tryDownload(ctx context.Context, out *reporter) bool {
	into := filepath.Join(s.dir, "envtest")
	err := out.during("downloading etcd, kube-apiserver and kubectl with setup-envtest", func() error {
		// A folder without a note may contain an incomplete download.
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
