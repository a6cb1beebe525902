// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	envAssets     = "KUBEBUILDER_ASSETS"
	envNoDownload = "DROVER_LAB_NO_DOWNLOAD"
)

// Assets maps the name of a program to the path of its binary.
type Assets map[string]string

// EnvtestDir returns the one folder that holds etcd, kube-apiserver and kubectl, fit for KUBEBUILDER_ASSETS.
func (a Assets) EnvtestDir() (string, error) {
	var dir string
	for _, name := range envtestPrograms() {
		path, ok := a[name]
		if !ok {
			return "", fmt.Errorf("assets folder: %s was not asked for", name)
		}
		if dir != "" && dir != filepath.Dir(path) {
			return "", fmt.Errorf("assets folder: %s is in %s, others are in %s: unset %s, or put all of them there",
				name, filepath.Dir(path), dir, envAssets)
		}
		dir = filepath.Dir(path)
	}
	return dir, nil
}

func envtestPrograms() []string { return []string{Etcd, APIServer, Kubectl} }

// DefaultPrograms are the programs of a control plane without nodes, and kubectl.
func DefaultPrograms() []string { return []string{Etcd, APIServer, ControllerManager, Kubectl} }

// Binaries returns the paths of the named programs (none: DefaultPrograms), and fetches or builds the missing ones.
//
// A program is taken from the folder KUBEBUILDER_ASSETS if that holds it, then from the user's cache, then from
// setup-envtest where it can download (tried once; never with DROVER_LAB_NO_DOWNLOAD=1), else it is built from Go
// modules. That takes about 15 minutes on two cores, once per version; progress receives reports of it. Concurrent
// calls, also by other processes, wait for one another. A call that was interrupted or killed leaves no half-made
// binary.
func Binaries(ctx context.Context, progress io.Writer, names ...string) (Assets, error) {
	if len(names) == 0 {
		names = DefaultPrograms()
	}
	found, rest, err := fromAssetsFolder(os.Getenv(envAssets), names)
	if err != nil {
		return nil, err
	}
	if len(rest) == 0 {
		return found, nil
	}
	c, err := newCatalog()
	if err != nil {
		return nil, err
	}
	s, err := newStore(c)
	if err != nil {
		return nil, err
	}
	built, err := s.ensure(ctx, newReporter(progress), rest)
	if err != nil {
		return nil, err
	}
	for name, path := range built {
		found[name] = path
	}
	return found, nil
}

// OldestBinaries is Binaries for DefaultPrograms, with a control plane of the oldest Kubernetes that Drover supports
// (docs/versions.md) and the newest kubectl. It does not read KUBEBUILDER_ASSETS, which has one version.
func OldestBinaries(ctx context.Context, progress io.Writer) (Assets, error) {
	c, err := oldestCatalog()
	if err != nil {
		return nil, err
	}
	s, err := newStore(c)
	if err != nil {
		return nil, err
	}
	return s.ensure(ctx, newReporter(progress), DefaultPrograms())
}

// fromAssetsFolder looks for names in dir and returns the names that it does not find. An empty dir has no programs. A
// dir that does not exist is an error, since the variable was set on purpose.
func fromAssetsFolder(dir string, names []string) (Assets, []string, error) {
	if dir == "" {
		return Assets{}, names, nil
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, nil, fmt.Errorf("find binaries: %s=%s is not a folder: correct it or unset it", envAssets, dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("find binaries: %w", err)
	}
	found, rest := lookIn(dir, names)
	return found, rest, nil
}

// lookIn finds executables by name in a folder and returns the names it lacks.
func lookIn(dir string, names []string) (Assets, []string) {
	found := Assets{}
	var rest []string
	for _, name := range names {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			found[name] = path
		} else {
			rest = append(rest, name)
		}
	}
	return found, rest
}

// A store is the folder of one stamp in the user's cache, and the ways to fill it.
type store struct {
	dir     string
	catalog catalog
	goTool  string
	// download fetches the envtest programs and returns their folder. It is nil if it must not be tried.
	download func(ctx context.Context, into string) (string, error)
}

func newStore(c catalog) (*store, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the cache folder: %w: set HOME or XDG_CACHE_HOME", err)
	}
	s := &store{
		dir:     filepath.Join(cache, "drover", "lab", c.stamp(runtime.GOOS, runtime.GOARCH)),
		catalog: c,
		goTool:  "go",
	}
	server, has := c[APIServer]
	if v := os.Getenv(envNoDownload); has && (v == "" || v == "0" || v == "false") {
		s.download = envtestDownload{goTool: s.goTool, version: minorOf(server.module.version), index: envtestIndex}.fetch
	}
	return s, nil
}

// ensure returns the paths of names, which must be in the catalog, and fetches or builds the missing programs.
func (s *store) ensure(ctx context.Context, out *reporter, names []string) (Assets, error) {
	for _, name := range names {
		if _, ok := s.catalog[name]; !ok {
			return nil, fmt.Errorf("find binaries: unknown program %q", name)
		}
	}
	if found, rest := s.find(names); len(rest) == 0 {
		return found, nil
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare the cache: %w", err)
	}
	lock, err := acquire(ctx, filepath.Join(s.dir, "lock"), out)
	if err != nil {
		return nil, err
	}
	defer lock.release()

	s.removeLeftovers()
	_, rest := s.find(names) // another process may have made them while we waited
	if s.canDownload(rest) && s.tryDownload(ctx, out) {
		_, rest = s.find(names)
	}
	if err := s.buildAll(ctx, out, rest); err != nil {
		return nil, err
	}
	found, rest := s.find(names)
	if len(rest) > 0 {
		return nil, fmt.Errorf("find binaries: %s vanished from %s", strings.Join(rest, ", "), s.dir)
	}
	return found, nil
}

// find looks for names among the built programs. If not all envtest programs were built, it takes them all from the
// download, since they must come from one folder to fit each other.
func (s *store) find(names []string) (Assets, []string) {
	found, rest := lookIn(s.dir, names)
	if !slices.ContainsFunc(rest, isEnvtestProgram) {
		return found, rest
	}
	dir, err := os.ReadFile(s.downloadNote())
	if err != nil {
		return found, rest
	}
	var wanted []string
	for _, name := range names {
		if isEnvtestProgram(name) {
			wanted = append(wanted, name)
		}
	}
	downloaded, missing := lookIn(strings.TrimSpace(string(dir)), wanted)
	if len(missing) > 0 {
		return found, rest
	}
	for name, path := range downloaded {
		found[name] = path
	}
	rest = slices.DeleteFunc(rest, isEnvtestProgram)
	return found, rest
}

func isEnvtestProgram(name string) bool { return slices.Contains(envtestPrograms(), name) }

func (s *store) downloadNote() string { return filepath.Join(s.dir, "envtest-folder") }

// removeLeftovers deletes the files that killed builds left behind. The caller holds the lock, so no build is writing
// them.
func (s *store) removeLeftovers() {
	leftovers, _ := fs.Glob(os.DirFS(s.dir), ".tmp-*") // the path of the folder is no pattern
	for _, name := range leftovers {
		_ = os.Remove(filepath.Join(s.dir, name)) // a leftover only costs disk space
	}
}

// buildAll builds the programs one after the other: the go command uses all cores by itself.
func (s *store) buildAll(ctx context.Context, out *reporter, names []string) error {
	if len(names) == 0 {
		return nil
	}
	out.say("building %s from Go modules into %s (once per version; about 15 minutes for all on two cores)",
		strings.Join(names, ", "), s.dir)
	for i, name := range names {
		what := fmt.Sprintf("building %s (%d of %d)", name, i+1, len(names))
		if err := out.during(what, func() error { return s.build(ctx, s.catalog[name]) }); err != nil {
			return err
		}
	}
	return nil
}
