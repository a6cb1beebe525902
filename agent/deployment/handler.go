// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/kube"
)

// maxBody bounds a Deployment, in bytes. The agent's takes a twentieth of it.
const maxBody = 128 << 10

// Handler is the http.Handler of protocol.PathDeployment.
type Handler struct {
	// Secrets of the agent's namespace.
	Secrets *kube.Secrets
	// Setup of the agent.
	Setup Setup
	Log   logr.Logger
}

// ServeHTTP answers PUT with 202 once the Deployment is kept for the leader, and with 422 and the reason if it is not
// one that this agent takes. Any replica may be asked: they share the Secret that it is kept in.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		http.Error(w, "the deployment is written with PUT", http.StatusMethodNotAllowed)
		return
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("the deployment has more than %d bytes", tooLarge.Limit), http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "the deployment was cut off", http.StatusBadRequest)
		return
	}
	d, err := Decode(raw)
	if err == nil {
		err = Check(d, h.Setup)
	}
	if err != nil {
		h.Log.Error(err, "deployment refused")
		http.Error(w, "the agent refuses the deployment: "+err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if err := (store{h.Secrets}).want(r.Context(), digestOf(d), raw); err != nil {
		h.Log.Error(err, "deployment not kept")
		http.Error(w, "the deployment could not be kept: try again", http.StatusServiceUnavailable)
		return
	}
	h.Log.Info("deployment taken over", "digest", digestOf(d))
	w.WriteHeader(http.StatusAccepted)
}
