// A text continued, in C#, over the C library: `mcs Chat.cs`, or a .NET project of this file.
// usage: Chat BLOB [TEXT]
using System;
using System.Runtime.InteropServices;
using System.Text;

/// <summary>What of smolrun.h this program uses. A size_t is a UIntPtr.</summary>
static class Native {
    const string Library = "smolrun";

    [StructLayout(LayoutKind.Sequential)]
    public struct GenerateOptions {
        public UIntPtr Size, MaxTokens;
        public IntPtr Stop;
        public UIntPtr StopLength;
        public IntPtr Cancel;
        public ulong Seed;
        public float Temperature, TopP;
        public UIntPtr TopK; // the fields after this one keep their defaults
    }

    [StructLayout(LayoutKind.Sequential)]
    public struct Token {
        public uint Id;
        public int FinishReason;
        public IntPtr Text;
        public UIntPtr TextLength;
    }

    [DllImport(Library)] public static extern uint smolrun_abi_version();
    [DllImport(Library)] static extern IntPtr smolrun_last_error();
    [DllImport(Library)] public static extern int smolrun_model_open(byte[] path, out IntPtr model);
    [DllImport(Library)] public static extern void smolrun_model_free(IntPtr model);
    [DllImport(Library)] public static extern int smolrun_encode_prompt(
        IntPtr model, byte[] text, UIntPtr length, int special, uint[] ids, UIntPtr capacity, out UIntPtr count);
    [DllImport(Library)] public static extern int smolrun_session_new(
        IntPtr model, IntPtr options, out IntPtr session);
    [DllImport(Library)] public static extern void smolrun_session_free(IntPtr session);
    [DllImport(Library)] public static extern int smolrun_generate_options_init(
        ref GenerateOptions options, UIntPtr size);
    [DllImport(Library)] public static extern int smolrun_session_generate(
        IntPtr session, uint[] prompt, UIntPtr length, ref GenerateOptions options);
    [DllImport(Library)] public static extern int smolrun_session_next(IntPtr session, out IntPtr token);

    public static void Check(int status) {
        if (status != 0) throw new Exception(Text(smolrun_last_error()));
    }

    /// <summary>UTF-8 up to its NUL.</summary>
    public static string Text(IntPtr utf8) {
        int length = 0;
        while (Marshal.ReadByte(utf8, length) != 0) length++;
        var bytes = new byte[length];
        Marshal.Copy(utf8, bytes, 0, length);
        return Encoding.UTF8.GetString(bytes);
    }

    public static byte[] Utf8(string text) { return Encoding.UTF8.GetBytes(text + "\0"); }
}

static class Program {
    static int Main(string[] args) {
        if (args.Length < 1 || Native.smolrun_abi_version() != 1) return 2;
        IntPtr model = IntPtr.Zero, session = IntPtr.Zero;
        try {
            Native.Check(Native.smolrun_model_open(Native.Utf8(args[0]), out model));
            Native.Check(Native.smolrun_session_new(model, IntPtr.Zero, out session));
            var text = Native.Utf8(args.Length > 1 ? args[1] : "Once upon a time");
            var ids = new uint[text.Length + 8];
            UIntPtr count, length = (UIntPtr)(text.Length - 1);
            Native.Check(Native.smolrun_encode_prompt(
                model, text, length, 0, ids, (UIntPtr)ids.Length, out count));

            var options = new Native.GenerateOptions();
            var size = (UIntPtr)Marshal.SizeOf(options);
            Native.Check(Native.smolrun_generate_options_init(ref options, size));
            options.MaxTokens = (UIntPtr)40;
            options.Temperature = 0.8f;
            options.Seed = 1;
            Native.Check(Native.smolrun_session_generate(session, ids, count, ref options));
            for (IntPtr token; ;) {
                Native.Check(Native.smolrun_session_next(session, out token));
                if (token == IntPtr.Zero) break;
                var shown = (Native.Token)Marshal.PtrToStructure(token, typeof(Native.Token));
                Console.Write(Native.Text(shown.Text));
            }
            Console.WriteLine();
            return 0;
        } catch (Exception error) {
            Console.Error.WriteLine(error.Message);
            return 1;
        } finally {
            Native.smolrun_session_free(session);
            Native.smolrun_model_free(model);
        }
    }
}
