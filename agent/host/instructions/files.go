// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/drover-dev/drover/internal/protocol"
)

// defaultMode is the mode of files whose mode is not specified.
const defaultMode = "0600"

// modeOf returns the mode of a file in instructions. The mode must have been validated.
func modeOf(file protocol.HostFile) fs.FileMode {
	mode, err := strconv.ParseUint(cmp.Or(file.Mode, defaultMode), 8, 12)
	if err != nil {
		return 0o600
	}
	return fs.FileMode(mode & 0o777)
}

// writeFile writes a file from the instructions to its path under root. It does not touch a file that is already up to
// date.
func writeFile(root string, file protocol.HostFile) error {
	path := filepath.Join(root, file.Path)
	if file.Absent {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", file.Path, errors.Unwrap(err))
		}
		return nil
	}
	if isWritten(path, file) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), folderMode(file.Path)); err != nil {
		return fmt.Errorf("create the folder of %s: %w", file.Path, err)
	}
	err := replaceFile(path, file.Content, func(out *os.File) error {
		if os.Geteuid() != 0 && file.UID == 0 && file.GID == 0 {
			return out.Chmod(modeOf(file)) // an agent that does not run as root already owns its files
		}
		return errors.Join(out.Chown(file.UID, file.GID), out.Chmod(modeOf(file)))
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", file.Path, err)
	}
	return nil
}

// folderMode returns the mode for missing directories. Other programs write files under /etc that all users may read,
// such as a kubeconfig. All users must therefore be able to enter directories under /etc. The mode of each file
// determines who can read the file.
func folderMode(path string) fs.FileMode {
	if strings.HasPrefix(filepath.Clean(path), "/etc/") {
		return 0o755
	}
	return 0o700
}

func isWritten(path string, file protocol.HostFile) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != modeOf(file) ||
		info.Size() != int64(len(file.Content)) {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() == 0 && (int(owner.Uid) != file.UID || int(owner.Gid) != file.GID) {
		return false
	}
	content, err := os.ReadFile(path)
	return err == nil && bytes.Equal(content, file.Content)
}
