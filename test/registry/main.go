// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command registry is the image registry of the distribution project, for tests.
//
// Unlike the project's own program, it stores images only in files, so it compiles without the libraries of cloud
// providers. It is a separate module, because no program of Drover may link it.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		os.Exit(1)
	}
}
