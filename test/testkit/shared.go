// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared is the API server that the tests of a package share. Starting an API server takes about 4 s of CPU time, which
// is more than most tests need.
var shared struct {
	once sync.Once
	env  *Env
	stop func() error // nil if nothing runs
	err  error
	main bool // a Main stops it
}

// Main runs the tests of a package, and then stops the API server that Shared started. It must be called by the
// TestMain of a package that uses Shared.
func Main(m *testing.M) {
	shared.main = true
	m.Run()
	if shared.stop == nil {
		return
	}
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)
		os.Exit(1)
	}
}

// Shared returns the API server that all tests of the package share. The first call starts it. Other tests use it
// before, after and during the current test. A test must therefore create its own namespaces, use unique names for
// cluster-scoped objects, and not read other objects.
func Shared(t testing.TB) *Env {
	t.Helper()
	if !shared.main {
		t.Fatal("the package has no TestMain that calls testkit.Main: the API server would stay")
	}
	crds := Path(t, "config/crd/bases")
	shared.once.Do(func() {
		// Do not use t's context, because other tests need the server after this test has ended.
		shared.env, shared.stop, shared.err = start(context.WithoutCancel(t.Context()), hubEnvironment(crds))
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.env
}
