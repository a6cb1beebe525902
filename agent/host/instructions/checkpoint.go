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

// readCheckpoint reads the hub's checkpoint. A host that has lost it would be cleaned by a hub that was restored, so a
// file that has none is an error.
func (r *Runner) readCheckpoint() error {
	path := filepath.Join(r.options.State, fileCheckpoint)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("instructions of the host: %w", err)
	case !protocol.ValidCheckpoint(string(raw)):
		return fmt.Errorf("instructions of the host: %s holds no checkpoint of the hub, by which a hub that was restored from a backup is known: remove the file if the hub was not", path)
	}
	r.reached = string(raw)
	return nil
}

// reach stores the checkpoint that came with instructions before the instructions: a host never has instructions with
// an earlier checkpoint.
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
