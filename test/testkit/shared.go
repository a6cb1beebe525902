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

// shared is the API server that the tests of a package have in common: a start takes some 4 s of a processor, more than
// most tests.
var shared struct {
	once sync.Once
	env  *Env
	stop func() error // nil if nothing runs
	err  error
	main bool // a Main stops it
}

// Main runs the tests of a package and then stops what Shared has started. It is the TestMain of a package that calls
// Shared.
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

// Shared returns the API server that all tests of the package share, started by the first call. Other tests use it
// before, after and beside this one, so a test creates its own namespaces, gives unique names to what is in none, and
// looks at nothing else.
func Shared(t testing.TB) *Env {
	t.Helper()
	if !shared.main {
		t.Fatal("the package has no TestMain that calls testkit.Main: the API server would stay")
	}
	crds := Path(t, "config/crd/bases")
	shared.once.Do(func() {
		// Not t's context: other tests need it when this one has ended.
		shared.env, shared.stop, shared.err = start(context.WithoutCancel(t.Context()), crds)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.env
}
