// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drover-dev/drover/internal/protocol"
)

// readCheckpoint reads the hub's checkpoint. A file without a checkpoint is an error, because a restored hub would
// clean a host that has lost its checkpoint.
func (r *Runner) readCheckpoint() error {
	path := filepath.Join(r.options.State, fileCheckpoint)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("instructions of the host: %w", err)
	case !protocol.ValidCheckpoint(string(raw)):
		return fmt.Errorf("instructions of the host: %s holds no checkpoint of the hub, which tells whether the hub was restored from a backup: remove the file if the hub was not restored", path)
	}
	r.reached = string(raw)
	return nil
}

// reach stores the checkpoint that the hub has sent along with instructions. The checkpoint is stored first, so that
// the stored checkpoint is never older than the stored instructions.
func (r *Runner) reach(checkpoint string) error {
	r.mu.Lock()
	same := r.reached == checkpoint
	r.mu.Unlock()
	if same || !protocol.ValidCheckpoint(checkpoint) {
		return nil
	}
	if err := WriteDurably(filepath.Join(r.options.State, fileCheckpoint), []byte(checkpoint)); err != nil {
		return fmt.Errorf("instructions of the host: %w", err)
	}
	r.mu.Lock()
	r.reached = checkpoint
	r.mu.Unlock()
	r.options.step("checkpoint stored")
	r.changed()
	return nil
}
