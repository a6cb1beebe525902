// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package login

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// onlyOwner returns an error if a directory belongs to another user, or if other users have any of the forbidden
// permissions.
func onlyOwner(info fs.FileInfo, dir string, forbidden fs.FileMode) error {
	if owner, known := info.Sys().(*syscall.Stat_t); !known || int64(owner.Uid) != int64(os.Geteuid()) {
		return fmt.Errorf("sessions are not kept in %q, because it belongs to another user of this computer: use another "+
			"HOME or KUBECACHEDIR", dir)
	}
	if info.Mode().Perm()&forbidden != 0 {
		return fmt.Errorf("sessions are not kept in %q, because other users of this computer have access: check that its "+
			"files are yours, or delete it, and run \"chmod 700\" for it", dir)
	}
	return nil
}
