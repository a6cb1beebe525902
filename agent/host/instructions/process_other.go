// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package instructions

import "os/exec"

// withGroup is for Linux, where hosts are.
func withGroup(*exec.Cmd) func() { return func() {} }

// detach is for Linux.
func detach(*exec.Cmd) {}
