package upstream

import (
	"io"
	"log/slog"

	"github.com/sirupsen/logrus"
)

// takeLogrus passes what logrus's standard logger is told to log, by the same rules as klog's lines. kine uses it.
// Where it would end the process, exit is called.
func takeLogrus(log *slog.Logger, exit func(reason string)) {
	logrus.SetOutput(io.Discard)
	logrus.StandardLogger().ExitFunc = func(int) { exit("the datastore gave up; the lines before say why") }
	logrus.AddHook(logrusHook{log})
}

type logrusHook struct{ log *slog.Logger }

func (logrusHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h logrusHook) Fire(e *logrus.Entry) error {
	args := make([]any, 0, 2*len(e.Data))
	for k, v := range e.Data {
		args = append(args, k, v)
	}
	if e.Level <= logrus.WarnLevel {
		h.log.Warn(e.Message, args...)
	} else {
		h.log.Info(e.Message, args...)
	}
	return nil
}
