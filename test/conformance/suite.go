// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

const (
	// registry is the name under which the suite expects its images. There is no such host: nodes have the images already.
	registry = "lab.example.com"
	// invalid is a registry of which no image can be pulled, for tests of that.
	invalid = "invalid.example.com"

	// grace is how long a test may clean up after the time is up.
	grace = 30 * time.Second
)

// registries has the suite use one name of a registry in place of its own.
const registries = `promoterE2eRegistry: ` + registry + `
buildImageRegistry: ` + registry + `
invalidRegistry: ` + invalid + `
gcEtcdRegistry: ` + registry + `
gcRegistry: ` + registry + `
sigStorageRegistry: ` + registry + `
privateRegistry: ` + invalid + `
dockerLibraryRegistry: ` + registry + `
cloudProviderGcpRegistry: ` + registry + `
`

// A suite is Kubernetes' end-to-end tests with the images that they use.
type suite struct {
	version    string
	tool       *lab.Tool
	registries string   // a file
	images     []string // tarballs
}

// newSuite builds the suite and its images, into a folder.
func newSuite(ctx context.Context, dir string) (*suite, error) {
	tool, err := lab.ConformanceTool(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	s := &suite{version: tool.Version, tool: tool, registries: filepath.Join(dir, "registries.yaml")}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.registries, []byte(registries), 0o600); err != nil {
		return nil, err
	}
	names, err := s.imageNames(ctx)
	if err != nil {
		return nil, err
	}
	sources, err := tool.Sources(ctx, "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	s.images, err = writeImages(ctx, dir, names, filepath.Join(sources, "test/images"), tool.Assets)
	return s, err
}

// imageNames asks the suite for the names of its images.
func (s *suite) imageNames(ctx context.Context) ([]string, error) {
	list := exec.CommandContext(ctx, s.tool.Assets[lab.E2ETest], "--list-images")
	list.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+s.registries)
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the images of the tests: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// A run is how the suite runs.
type run struct {
	kubeconfig, kubectl string
	// dir gets the log and the report.
	dir   string
	procs int
	limit time.Duration
	// beside returns the command that runs another one where nodes and pods are reached.
	beside func(args ...string) ([]string, error)
}

// run runs tests and returns what became of each.
func (s *suite) run(ctx context.Context, r run, tests []string) (results, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	const file = "report.json"
	args, err := r.beside(s.tool.Assets[lab.Ginkgo], "--procs="+strconv.Itoa(r.procs), "--no-color", "--timeout="+r.limit.String(), "--grace-period="+grace.String(),
		"--silence-skips", "--json-report="+file, "--output-dir="+r.dir, "--focus="+focus(tests), s.tool.Assets[lab.E2ETest], "--",
		"--kubeconfig="+r.kubeconfig, "--kubectl-path="+r.kubectl, "--provider=skeleton", "--num-nodes=2", "--disable-log-dump", "--dump-logs-on-failure=false")
	if err != nil {
		return nil, err
	}
	suite := exec.CommandContext(ctx, args[0], args[1:]...)
	suite.Dir, suite.Stdout, suite.Stderr = r.dir, log, log
	suite.Env = append(os.Environ(), "KUBECONFIG="+r.kubeconfig, "KUBE_TEST_REPO_LIST="+s.registries, "PATH="+filepath.Dir(r.kubectl)+":"+os.Getenv("PATH"))
	suite.SysProcAttr, suite.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, 2*grace
	suite.Cancel = func() error { return syscall.Kill(-suite.Process.Pid, syscall.SIGTERM) }
	watched, stop := context.WithCancel(ctx)
	go tell(watched, log.Name(), len(tests))
	failed := suite.Run() // an error where a test failed: the report says which
	stop()
	content, err := os.ReadFile(filepath.Join(r.dir, file))
	if err != nil {
		return nil, errors.Join(failed, fmt.Errorf("%w: see %s", err, log.Name()))
	}
	return readReport(content)
}

// tell prints every minute how many tests of a log have ended, until ctx does.
func tell(ctx context.Context, log string, all int) {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if content, err := os.ReadFile(log); err == nil {
				say("  %d of %d have ended", bytes.Count(content, []byte(ended)), all)
			}
		}
	}
}

// focus is the regular expression of exactly these tests.
func focus(tests []string) string {
	var b bytes.Buffer
	for i, name := range tests {
		if i > 0 {
			b.WriteByte('|')
		}
		b.WriteString(regexp.QuoteMeta(name) + "$")
	}
	return b.String()
}

// A result is what became of one test.
type result struct {
	name  string
	state string
	took  time.Duration
	// failure is its first line.
	failure string
	// again means that the test failed beside others and then ran alone.
	again bool
}

type results []result

const (
	passed = "passed"
	// ended is what ginkgo prints for each test that has ended.
	ended = "•"
)

// passed returns the names of the tests that passed.
func (r results) passed() []string {
	var names []string
	for _, one := range r {
		if one.state == passed {
			names = append(names, one.name)
		}
	}
	return names
}

// failed returns the names of the tests that did not pass.
func (r results) failed() []string {
	var names []string
	for _, one := range r {
		if one.state != passed {
			names = append(names, one.name)
		}
	}
	return names
}

// amended returns the results, replaced by the results of a second run where there are any.
func (r results) amended(second results) results {
	all := slices.Clone(r)
	for i, one := range all {
		if at := slices.IndexFunc(second, func(s result) bool { return s.name == one.name }); at >= 0 {
			all[i] = second[at]
			all[i].again = true
		}
	}
	return all
}

// readReport reads a report of ginkgo. A test that did not run is left out.
func readReport(content []byte) (results, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(content, &suites); err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	var all results
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if spec.LeafNodeType != "It" || spec.State == "skipped" || spec.State == "pending" {
				continue
			}
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			line, _, _ := strings.Cut(spec.Failure.Message, "\n")
			all = append(all, result{name: name, state: spec.State, took: spec.RunTime, failure: line})
		}
	}
	slices.SortFunc(all, func(a, b result) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}
