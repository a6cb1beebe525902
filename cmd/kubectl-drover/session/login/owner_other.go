// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package login

import "io/fs"

// onlyOwner returns no error on this platform, because a directory's mode does not show who has access to it. By
// default, only the user has access to their home directory.
func onlyOwner(fs.FileInfo, string, fs.FileMode) error { return nil }
