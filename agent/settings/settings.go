// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package settings stores the settings that the hub announces and then confirms them.
package settings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/environ"
	"github.com/drover-dev/drover/internal/protocol"
)

// Handler is the http.Handler of protocol.PathSettings.
type Handler struct {
	// Store stores settings permanently. Later connections use them.
	Store func(ctx context.Context, s protocol.Settings) error
	Log   logr.Logger
}

// ServeHTTP answers PUT with 204 when the settings are stored, and with 400 if they cannot be used. The same settings again are no
// change.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		http.Error(w, "settings are written with PUT", http.StatusMethodNotAllowed)
		return
	}
	var s protocol.Settings
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, protocol.MaxBody)).Decode(&s)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("the settings have more than %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
		return
	}
	if err == nil {
		err = Validate(s)
	}
	if err != nil {
		h.Log.Error(err, "settings refused")
		http.Error(w, "settings: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := h.Store(r.Context(), s); err != nil {
		h.Log.Error(err, "settings not stored")
		http.Error(w, "the settings could not be stored: try again", http.StatusServiceUnavailable)
		return
	}
	h.Log.Info("settings stored", "servers", s.Servers, "digest", s.Digest())
	w.WriteHeader(http.StatusNoContent)
}

// Validate returns an error if settings cannot be used. An agent that stored them could not connect again.
func Validate(s protocol.Settings) error {
	if len(s.Servers) == 0 {
		return errors.New("no servers")
	}
	for _, server := range s.Servers {
		if _, err := environ.ServerURL(server); err != nil {
			return err
		}
	}
	if s.CABundle == "" {
		return nil
	}
	_, err := protocol.ParseBundle([]byte(s.CABundle))
	return err
}
