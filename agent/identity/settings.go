// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
)

// settingsHandler is the http.Handler for protocol.PathSettings.
type settingsHandler struct {
	// store stores settings permanently, so that later connections use them.
	store func(ctx context.Context, s protocol.Settings) error
	log   logr.Logger
}

// ServeHTTP responds to PUT with 204 once the settings are stored, or with 400 if they are invalid. It is idempotent.
func (h *settingsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := protocol.ReadPut(w, r, "settings", protocol.MaxBody)
	if !ok {
		return
	}
	var s protocol.Settings
	err := json.Unmarshal(body, &s)
	if err == nil {
		err = validateSettings(s)
	}
	if err != nil {
		h.log.Error(err, "refused settings from the hub")
		http.Error(w, "settings: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := h.store(r.Context(), s); err != nil {
		h.log.Error(err, "cannot store settings from the hub")
		http.Error(w, "the settings could not be stored: try again", http.StatusServiceUnavailable)
		return
	}
	h.log.Info("stored settings from the hub", "servers", s.Servers, "digest", s.Digest())
	w.WriteHeader(http.StatusNoContent)
}

// validateSettings returns an error if settings are invalid. An agent that stored invalid settings could not connect
// again.
func validateSettings(s protocol.Settings) error {
	if len(s.Servers) == 0 {
		return errors.New("no servers")
	}
	for _, server := range s.Servers {
		if _, err := protocol.ServerURL(server); err != nil {
			return err
		}
	}
	if s.CABundle == "" {
		return nil
	}
	_, err := protocol.ParseBundle([]byte(s.CABundle))
	return err
}
