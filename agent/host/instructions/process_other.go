// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package instructions

import "os/exec"

// withGroup does nothing on this platform, because hosts run Linux.
func withGroup(*exec.Cmd) func() { return func() {} }

// detach does nothing on this platform, because hosts run Linux.
func detach(*exec.Cmd) {}
