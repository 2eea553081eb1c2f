package inproc

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// response is the http.ResponseWriter of one request. It has Flush and CloseNotify, which the API server's watch and
// timeout handlers ask for, and no Hijack.
type response struct {
	request *http.Request
	header  http.Header
	started chan struct{}
	once    sync.Once
	status  int
	sent    http.Header // header at the time of WriteHeader; later changes are not seen by the reader
	body    *pipe
	done    <-chan struct{}
}

func newResponse(r *http.Request, cancel context.CancelFunc) *response {
	return &response{request: r, header: http.Header{}, started: make(chan struct{}), body: newPipe(cancel), done: r.Context().Done()}
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	if status >= 200 { // informational responses are not passed on
		w.start(status)
	}
}

func (w *response) start(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.started)
	})
}

func (w *response) Write(b []byte) (int, error) {
	w.start(http.StatusOK)
	return w.body.Write(b)
}

// Flush sends the headers; the body is not buffered.
func (w *response) Flush() { w.start(http.StatusOK) }

// CloseNotify is asked for by handlers older than request contexts.
func (w *response) CloseNotify() <-chan bool {
	c := make(chan bool, 1)
	context.AfterFunc(w.request.Context(), func() { c <- true })
	return c
}

// result is the client's view of the response; call it only after started is closed.
func (w *response) result() *http.Response {
	length := int64(-1)
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	return &http.Response{
		Status:        strconv.Itoa(w.status) + " " + http.StatusText(w.status),
		StatusCode:    w.status,
		Proto:         "HTTP/2.0",
		ProtoMajor:    2,
		Header:        w.sent,
		Body:          w.body,
		ContentLength: length,
		Request:       w.request,
	}
}

// maxBuffered is how many bytes of a body wait for a reader before its writer does. A list is written in one piece, so a
// single write may go over it.
const maxBuffered = 1 << 20

// pipe is the body of a response: an io.ReadCloser for the client and an io.Writer for the handler.
type pipe struct {
	mu     sync.Mutex
	cond   sync.Cond
	chunks [][]byte
	size   int
	err    error // why no more can be read once chunks are used up
	closed bool  // by the reader
	cancel context.CancelFunc
}

func newPipe(cancel context.CancelFunc) *pipe {
	p := &pipe{cancel: cancel}
	p.cond.L = &p.mu
	return p
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.size >= maxBuffered && !p.closed && p.err == nil {
		p.cond.Wait()
	}
	if p.closed {
		return 0, io.ErrClosedPipe
	}
	if p.err != nil {
		return 0, p.err
	}
	if len(b) > 0 { // the writer may use b again
		p.chunks = append(p.chunks, append([]byte(nil), b...))
		p.size += len(b)
		p.cond.Broadcast()
	}
	return len(b), nil
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.chunks) == 0 && p.err == nil && !p.closed {
		p.cond.Wait()
	}
	if p.closed {
		return 0, io.ErrClosedPipe
	}
	if len(p.chunks) == 0 {
		return 0, p.err
	}
	n := copy(b, p.chunks[0])
	if p.chunks[0] = p.chunks[0][n:]; len(p.chunks[0]) == 0 {
		p.chunks = p.chunks[1:]
	}
	p.size -= n
	p.cond.Broadcast()
	return n, nil
}

// Close ends the handler.
func (p *pipe) Close() error {
	p.mu.Lock()
	p.closed, p.chunks, p.size = true, nil, 0
	p.cond.Broadcast()
	p.mu.Unlock()
	p.cancel()
	return nil
}

// finish lets the reader see the end after what is buffered.
func (p *pipe) finish() { p.end(io.EOF) }

// abort lets the reader see err after what is buffered.
func (p *pipe) abort(err error) { p.end(err) }

func (p *pipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.cond.Broadcast()
}
