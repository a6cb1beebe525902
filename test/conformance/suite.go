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
	// registry is the registry in the names of the suite's images. There is no such host, because nodes already have the
	// images.
	registry = "lab.example.com"
	// invalid is a registry from which no image can be pulled, for tests of this case.
	invalid = "invalid.example.com"

	// grace is how long a test may clean up after its time has run out.
	grace = 30 * time.Second
)

// registries makes the suite use one registry name instead of its own names.
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

// A suite contains Kubernetes' end-to-end tests and the images that they use.
type suite struct {
	version    string
	tool       *lab.Tool
	registries string   // a file
	images     []string // tarballs
}

// newSuite builds the suite and its images in a folder.
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

// imageNames gets the names of the suite's images from the suite.
func (s *suite) imageNames(ctx context.Context) ([]string, error) {
	list := exec.CommandContext(ctx, s.tool.Assets[lab.E2ETest], "--list-images")
	list.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+s.registries)
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the images of the tests: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// A run describes how the suite is run.
type run struct {
	kubeconfig, kubectl string
	// dir is the folder for the log and the report.
	dir   string
	procs int
	limit time.Duration
	// beside returns a command that runs another command where nodes and pods can be reached.
	beside func(args ...string) ([]string, error)
}

// run runs tests and returns the result of each.
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

// tell prints the number of tests in a log that have ended, every minute, until ctx ends.
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

// focus returns a regular expression that matches exactly these tests.
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

// A result is the result of one test.
type result struct {
	name  string
	state string
	took  time.Duration
	// failure is the first line of the failure.
	failure string
	// again means that the test failed when it ran with others, and then ran alone.
	again bool
}

type results []result

const (
	passed = "passed"
	// ended is the line that ginkgo prints for each test that has ended.
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

// amended returns the results, with the results of a second run in place of the first where there are any.
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

// readReport reads a report of ginkgo. It omits tests that did not run.
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
