// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	lablib "github.com/drover-dev/drover/test/lab/nodes"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	// envRun is the environment variable that enables these tests, which need root and several minutes. envTranscript
	// names the file for the transcript.
	envRun        = "DROVER_E2E"
	envTranscript = "DROVER_E2E_TRANSCRIPT"

	// envKeep names a folder in which the lab and the operator's files are kept after the test. Another run continues from
	// there, with the stories that -run selects.
	envKeep = "DROVER_E2E_KEEP"

	// commandLimit is the maximum duration of one of the operator's commands.
	commandLimit = 10 * time.Minute

	// removalTime is the part of the test's time that is reserved for diagnosing failures and removing the lab.
	removalTime = 4 * time.Minute

	// changeLimit is the maximum time until a change takes effect.
	changeLimit = 2 * time.Minute

	toolImage = "lab.example.com/tool:1"
)

// operator works on a computer in the network of the lab's nodes, with a shell and kubectl. The transcript contains the
// operator's input.
type operator struct {
	lab *lablib.Lab
	// dir is the working folder. sources is the folder of the repository.
	dir, sources string
	// image is the name of Drover's image.
	image      string
	transcript *transcript
	// options are the options with which the lab was started.
	options lablib.Options
	// ended is a context that ends the running command while there is still time to remove the lab.
	ended context.Context
}

// newOperator starts the lab with all images.
func newOperator(t *testing.T) *operator {
	t.Helper()
	if os.Getenv(envRun) == "" {
		t.Skipf("it takes root, images and minutes: make e2e")
	}
	if err := lablib.Check(); err != nil {
		t.Skip(err)
	}
	sources, err := framework.Sources()
	if err != nil {
		t.Fatal(err)
	}
	dir := os.Getenv(envKeep)
	if dir == "" {
		dir = t.TempDir()
	}
	o := &operator{dir: dir, sources: sources, transcript: openTranscript(t, sources), ended: ending(t)}
	drover := filepath.Join(sources, "dist/images/drover-linux-"+runtime.GOARCH+".tar")
	if o.image, err = imageName(drover); err != nil {
		t.Fatalf("make images first: %v", err)
	}
	tool := o.build(t)
	file, err := lablib.ReadFile("testdata/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file.Images = []string{drover, tool}
	labDir := filepath.Join(dir, "lab")
	t.Cleanup(func() {
		if os.Getenv(envKeep) != "" {
			t.Logf("the lab is kept: labctl down -f test/e2e/nodes/testdata/lab.yaml --dir %s", labDir)
			return
		}
		if err := lablib.Down(context.Background(), labDir, "", os.Stderr); err != nil {
			t.Error(err)
		}
	})
	start := time.Now()
	o.options = lablib.Options{File: file, Dir: labDir, Progress: os.Stderr, Labctl: filepath.Join(o.dir, "bin/labctl")}
	if o.lab, err = lablib.Up(o.ended, o.options); errors.Is(err, lablib.ErrMachine) {
		t.Skip(err)
	} else if err != nil {
		o.showNodes(t, labDir)
		t.Fatal(err)
	}
	o.transcript.note("The lab was up after %s.", time.Since(start).Round(time.Second))
	for _, cluster := range file.Clusters {
		o.login(t, cluster.Name)
	}
	return o
}

// ending returns a context that ends before the time of the test does, or when the program receives a signal to end. In
// both cases the lab is removed.
func ending(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(stop)
	if deadline, found := t.Deadline(); found {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, deadline.Add(-removalTime), errors.New("the time of the test is up"))
		t.Cleanup(cancel)
	}
	return ctx
}

// build builds the operator's programs into bin and returns the tarball of the image that the pods of the stories run.
func (o *operator) build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(o.dir, "bin")
	for name, source := range map[string]string{"labctl": "./hack/labctl", "tool": "./test/e2e/nodes/testdata/tool"} {
		build := exec.CommandContext(o.ended, "go", "build", "-ldflags=-s -w", "-o", filepath.Join(bin, name), source)
		build.Dir, build.Env = o.sources, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", source, err, out)
		}
	}
	assets, err := lab.Binaries(o.ended, os.Stderr, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	asTar := filepath.Join(t.TempDir(), "tar")
	for link, program := range map[string]string{filepath.Join(bin, "kubectl"): assets[lab.Kubectl], asTar: filepath.Join(bin, "tool")} {
		if err := os.Symlink(program, link); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	tarball := filepath.Join(o.dir, "tool.tar")
	if err := lablib.WriteImage(tarball, lablib.Image{Name: toolImage, Programs: []string{filepath.Join(bin, "tool"), asTar}}); err != nil {
		t.Fatal(err)
	}
	return tarball
}

// imageName returns the name of the image in a tarball.
func imageName(tarball string) (string, error) {
	f, err := os.Open(tarball)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for in := tar.NewReader(f); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("%s has no manifest.json", tarball)
		}
		if err != nil {
			return "", err
		}
		if header.Name != "manifest.json" {
			continue
		}
		var images []struct{ RepoTags []string }
		if err := json.NewDecoder(in).Decode(&images); err != nil {
			return "", err
		}
		if len(images) != 1 || len(images[0].RepoTags) != 1 {
			return "", fmt.Errorf("%s has the images %v, want one with one name", tarball, images)
		}
		return images[0].RepoTags[0], nil
	}
}

// login gives the operator a kubeconfig for a cluster of the lab. The operator reaches the cluster's API server through
// the bridge.
func (o *operator) login(t *testing.T, cluster string) {
	t.Helper()
	config, err := os.ReadFile(o.lab.Kubeconfig(cluster))
	if err != nil {
		t.Fatal(err)
	}
	o.write(t, cluster+".kubeconfig", strings.Replace(string(config), "https://127.0.0.1:", "https://10.90.0.1:", 1))
}

// write writes a file to the operator's folder. The transcript shows the file if it is YAML that users write.
func (o *operator) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(o.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(name) == ".yaml" {
		o.transcript.file(name, content)
	}
}

// types runs a command line with the kubeconfig of the given name and returns its output. It fails the test if the
// command fails.
func (o *operator) types(t *testing.T, kubeconfig, line string) string {
	t.Helper()
	out, err := o.tries(o.ended, kubeconfig, line)
	if err != nil {
		t.Fatalf("%s$ %s\n%s\n%v", kubeconfig, line, out, errors.Join(err, context.Cause(o.ended)))
	}
	return out
}

// tries is like types, but the command may fail. The result includes the command's standard error.
func (o *operator) tries(ctx context.Context, kubeconfig, line string) (string, error) {
	start := time.Now()
	out, err := o.runs(ctx, kubeconfig, line)
	o.transcript.command(kubeconfig, line, out, err, time.Since(start))
	return out, err
}

// awaits repeats a command line until it has the wanted result. The transcript contains the last attempt.
func (o *operator) awaits(t *testing.T, kubeconfig, line string, check func(out string, err error) error) {
	t.Helper()
	testkit.Eventually(t, changeLimit, func(ctx context.Context) error {
		start := time.Now()
		out, err := o.runs(ctx, kubeconfig, line)
		if wrong := check(out, err); wrong != nil {
			return fmt.Errorf("%s$ %s\n%s\n%w: %w", kubeconfig, line, out, err, wrong)
		}
		o.transcript.command(kubeconfig, line, out, err, time.Since(start))
		return nil
	})
}

// runs runs a command line and returns its output.
func (o *operator) runs(ctx context.Context, kubeconfig, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd, err := o.command(ctx, kubeconfig, line)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// command prepares a command line.
func (o *operator) command(ctx context.Context, kubeconfig, line string) (*exec.Cmd, error) {
	args, err := o.lab.Beside("bash", "-o", "pipefail", "-c", line)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	// Processes that the shell has started end with it, and do not keep its output open.
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, 10*time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = o.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(o.dir, kubeconfig+".kubeconfig"),
		"PATH="+filepath.Join(o.dir, "bin")+":"+os.Getenv("PATH"), "HOME="+o.dir)
	return cmd, nil
}

// fails runs a command line that must fail with the given message.
func (o *operator) fails(t *testing.T, kubeconfig, line, why string) {
	t.Helper()
	if out, err := o.tries(o.ended, kubeconfig, line); err == nil || !strings.Contains(out, why) {
		t.Errorf("%s$ %s\n%s\n%v: want it to fail with %q", kubeconfig, line, out, err, why)
	}
}

// starts starts a command line that runs until it is stopped. It returns a function that stops it and returns its
// output.
func (o *operator) starts(t *testing.T, kubeconfig, line string) func() string {
	t.Helper()
	cmd, err := o.command(t.Context(), kubeconfig, line)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceValue(func() string {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // what ends by a signal has failed
		o.transcript.command(kubeconfig, line, out.String(), nil, time.Since(start))
		return strings.TrimSpace(out.String())
	})
	t.Cleanup(func() { stop() })
	return stop
}

// onNode runs a command on a node and returns its output.
func (o *operator) onNode(t *testing.T, node, line string) string {
	t.Helper()
	args, err := o.lab.Enter(node, "sh", "-c", line)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	out, err := exec.CommandContext(o.ended, args[0], args[1:]...).CombinedOutput()
	o.transcript.command(node, line, string(out), err, time.Since(start))
	if err != nil {
		t.Fatalf("%s$ %s\n%s\n%v", node, line, out, err)
	}
	return strings.TrimSpace(string(out))
}
